"""The catalog as the stores keep it: versions of a path, their texts, and which of them counts."""

from holdfast.store.catalog import CatalogRow
from running import run
from store_scenario import NOW, opened

TWO_STEPS = '{"steps":[{"name":"a"},{"name":"b"}]}'
ONE_STEP = '{"steps":[{"name":"a"}]}'


def test_a_version_is_kept_with_the_text_it_was_compiled_from(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            yaml = await store.save_definition(
                "flow", TWO_STEPS, "h1", NOW, "steps: [a, b] # \u00e9 'quoted' \n"
            )
            python = await store.save_definition("flow", ONE_STEP, "h2", NOW + 1)
            assert await store.definition_source(yaml.id) == "steps: [a, b] # \u00e9 'quoted' \n"
            assert await store.definition_source(python.id) is None
            assert await store.definition_source(python.id + 1) is None
            assert await store.definition(yaml.id) == yaml

    run(main())


def test_a_text_that_means_the_same_takes_the_place_of_the_one_before(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            first = await store.save_definition("flow", TWO_STEPS, "h1", NOW, "one")
            again = await store.save_definition("flow", TWO_STEPS, "h1", NOW + 1, "one, with a comment")
            assert again == first
            assert await store.definition_source(first.id) == "one, with a comment"
            await store.save_definition("flow", TWO_STEPS, "h1", NOW + 2)
            assert await store.definition_source(first.id) == "one, with a comment"

    run(main())


def test_the_catalog_lists_versions_with_which_of_them_counts(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            assert await store.catalog(None, limit=10) == []
            one = await store.save_definition("flow", TWO_STEPS, "h1", NOW, "text")
            two = await store.save_definition("flow", ONE_STEP, "h2", NOW + 1)
            other = await store.save_definition("a/first", ONE_STEP, "h3", NOW + 2, "text")
            first = CatalogRow(one.id, "flow", 1, "h1", True, 2, NOW, NOW, False, 2)
            second = CatalogRow(two.id, "flow", 2, "h2", False, 1, NOW + 1, NOW + 1, True, 2)
            alone = CatalogRow(other.id, "a/first", 1, "h3", True, 1, NOW + 2, NOW + 2, True, 1)
            assert await store.catalog(None, limit=10) == [alone, second, first]
            assert await store.catalog(None, current=True, limit=10) == [alone, second]
            assert await store.catalog("flow", limit=10) == [second, first]
            assert await store.catalog("flow", limit=1) == [second]
            assert await store.catalog("flow", version=1, limit=10) == [first]
            assert await store.catalog("flow", version=3, limit=10) == []
            assert await store.catalog("nothing", limit=10) == []
            assert await store.catalog(None, current=True, after="a/first", limit=10) == [second]
            # Registered again, an older version counts again; when it was made does not change.
            await store.save_definition("flow", TWO_STEPS, "h1", NOW + 3, "text")
            assert await store.catalog("flow", current=True, limit=10) == [
                first._replace(is_current=True, registered_at=NOW + 3)
            ]

    run(main())
