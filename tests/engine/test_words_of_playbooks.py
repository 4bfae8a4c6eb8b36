"""What is told of a failed step: nobody is asked to upload a document again that nobody has uploaded."""

from engine_scenario import Scenario, on_both_stores, stage


@on_both_stores
async def test_a_step_with_a_type_speaks_of_no_document(s: Scenario) -> None:
    await s.define(stage("fetch", type="http"))
    execution_id = await s.submit()
    await s.fail(await s.lease_one(), "no such thing", status_code=404)
    error = (await s.execution(execution_id)).error
    assert error is not None
    assert (error.error_type, error.user_message) == (
        "not_found",
        "Something that the step needs was not found",
    )


@on_both_stores
async def test_a_pipelines_own_step_keeps_the_words_of_the_catalogue(s: Scenario) -> None:
    await s.define(stage("fetch"))
    execution_id = await s.submit()
    await s.fail(await s.lease_one(), "no such thing", status_code=404)
    error = (await s.execution(execution_id)).error
    assert error is not None and error.user_message == "Document file not found"
