"""Text in the encodings that people have."""

from __future__ import annotations

import pytest

from holdfast.core.errors import PermanentError

GERMAN = "Die Größe der Öfen läßt sich über Maße ändern. Für Äpfel süßer Art gilt: schön früh pflücken. "
RUSSIAN = "Комитет собрался в понедельник и утвердил бюджет на следующий год. Расходы не изменились. "
JAPANESE = "委員会は月曜日に開かれ、来年の予算を承認しました。費用は変わりませんでした。"


@pytest.mark.parametrize(
    ("text", "codec", "shown"),
    [
        ("plain words", "ascii", "utf-8"),
        (GERMAN, "utf-8", "utf-8"),
        (GERMAN, "utf-8-sig", "utf-8"),
        (GERMAN, "utf-16", "utf-16"),
        (GERMAN, "utf-16-le", "utf-16"),
        (GERMAN, "utf-16-be", "utf-16"),
        (GERMAN, "utf-32", "utf-32"),
        (GERMAN * 5, "cp1252", "cp1252"),
        ("Käse – 5 €", "cp1252", "cp1252"),
        (RUSSIAN * 5, "utf-8", "utf-8"),
        (RUSSIAN * 5, "cp1251", "cp1251"),
        (JAPANESE * 5, "shift_jis", "cp932"),
        (JAPANESE * 5, "utf-8", "utf-8"),
    ],
    ids=[
        *(
            "ascii",
            "utf_8",
            "utf_8_mark",
            "utf_16",
            "utf_16_le",
            "utf_16_be",
            "utf_32",
            "cp1252",
            "cp1252_short",
        ),
        *("russian_utf_8", "russian_cp1251", "japanese_shift_jis", "japanese_utf_8"),
    ],
)
def test_text_is_read_in_its_encoding(text: str, codec: str, shown: str, read) -> None:
    document = read(text.encode(codec), "a.txt")
    assert document.text == text.strip()
    assert document.facts.encoding == shown
    guessed = [f"Its encoding was guessed: {shown}."] if shown.startswith("cp") and shown != "cp1252" else []
    assert [told.partition(" Where")[0] for told in document.facts.warnings] == guessed


ONE_SENTENCE = {
    "tr": "Kira sözleşmesi: kiracı her ay kirayı peşin öder, çatının onarımı ev sahibine aittir.",
    "pl": "Umowa najmu: najemca będzie płacić czynsz co miesiąc z góry; żółta łódź należy do klubu.",
    "cs": "Nájemní smlouva: nájemce platí vždy předem; žluťoučký kůň úpěl ďábelské ódy u řeky.",
    "hu": "Bérleti szerződés: a bérlő minden hónapban előre fizeti a díjat, a tetőt a tulajdonos őrzi.",
    "de": "Mietvertrag: für größere Schäden am Dach haftet der Vermieter, kleinere trägt der Mieter.",
    "pt": "Contrato: as condições são válidas, os cartões e o pão não; o inquilino não paga em março.",
    "fr": "Contrat de location : le locataire paie à l'avance ; où qu'il soit, l'été, le jardin est fermé.",
    "ru": "Договор аренды: арендатор платит каждый месяц вперёд, договор заключён на один год.",
    "el": "Σύμβαση μίσθωσης: ο μισθωτής πληρώνει κάθε μήνα προκαταβολικά για ένα έτος.",
    "ja": "賃貸借契約書。借主は毎月前払いで家賃を支払う。契約期間は一年とする。",
    "zh": "租赁合同。承租人每月预付租金。合同期限为一年，经双方同意可以延长。",
    "ko": "임대차 계약서. 임차인은 매월 임대료를 선불로 지급한다. 계약 기간은 일 년이다.",
}


@pytest.mark.parametrize(
    ("language", "codec"),
    [
        *(("tr", "cp1254"), ("tr", "iso8859-9"), ("pl", "cp1250"), ("pl", "iso8859-2"), ("cs", "cp1250")),
        *(("cs", "iso8859-2"), ("hu", "cp1250"), ("hu", "iso8859-2"), ("de", "cp850"), ("de", "mac_roman")),
        *(
            ("de", "latin-1"),
            ("pt", "cp1252"),
            ("fr", "cp1252"),
            ("fr", "mac_roman"),
            ("ru", "koi8-r"),
            ("ru", "cp1251"),
        ),
        *(("ru", "cp866"), ("ru", "iso8859-5"), ("el", "cp1253"), ("el", "iso8859-7"), ("ja", "shift_jis")),
        *(("ja", "euc_jp"), ("ja", "iso2022_jp"), ("zh", "gb18030"), ("ko", "euc_kr")),
    ],
)
def test_a_sentence_shows_its_encoding(language: str, codec: str, read) -> None:
    text = ONE_SENTENCE[language]
    assert read(text.encode(codec), "a.txt").text == text


@pytest.mark.parametrize(
    ("text", "codec"),
    [
        (
            "Jürgen Großmann, François Lefèvre, José Muñoz, João Gonçalves, Åsa Öberg, Søren Kjær, Zoë Brand,"
            " Þóra Björnsdóttir, Núria Peñalver, Conceição Simões, Ángel Ibáñez, Besançon, Düsseldorf, Malmö",
            "cp1252",
        ),
        ("AS CONDIÇÕES SÃO VÁLIDAS; O INQUILINO NÃO PAGA AS INFORMAÇÕES EM MARÇO", "cp1252"),
        ("This agreement is governed by the law of the city. " * 6 + RUSSIAN, "cp1251"),
        ("This agreement is governed by the law of the city. " * 6 + RUSSIAN, "koi8-r"),
    ],
    ids=["names of many languages", "capitals", "English and Russian", "the same in KOI8"],
)
def test_several_languages_show_their_encoding(text: str, codec: str, read) -> None:
    assert read(text.encode(codec), "a.txt").text == text.strip()


def test_line_ends_of_all_kinds_are_line_ends(read) -> None:
    assert read(b"one\r\ntwo\rthree\nfour").text == "one\ntwo\nthree\nfour"


def test_a_few_broken_bytes_in_much_utf_8_are_told_as_lost(read) -> None:
    data = (GERMAN * 50).encode() + b"\xff\xfe end " + (GERMAN * 50).encode()
    document = read(data)
    assert document.facts.encoding == "utf-8"
    assert document.facts.warnings == ["2 characters could not be read as utf-8, and are lost."]


def test_what_is_no_utf_8_only_far_behind_is_found(read) -> None:
    data = b"plain words. " * 200_000 + (GERMAN * 20).encode("cp1252")
    document = read(data)
    assert document.facts.encoding == "cp1252"
    assert document.text.endswith(GERMAN.strip())


def test_a_line_of_a_megabyte_is_cut_into_chunks(read) -> None:
    document = read(b"x" * 1_000_000, chunk_chars_max=1000, overlap_chars=0)
    assert len(document.chunks) == 1000
    assert document.facts.characters == 1_000_000


def test_nul_bytes_in_a_text_are_left_out(read) -> None:
    assert read(b"words " * 500 + b"\0" + b"more").text.endswith("words more")


def test_utf_16_with_a_half_character_at_its_end_is_read(read) -> None:
    assert read("Some words in it, and more".encode("utf-16-le") + b"\x41").text.startswith("Some words")


def test_bytes_that_no_encoding_fits_are_read_as_cp1252(read) -> None:
    document = read(b"word \x81\x8d\x8f word " * 3)
    assert document.text.count("word") == 6


def test_a_text_that_is_only_marks_is_empty(read) -> None:
    with pytest.raises(PermanentError) as raised:
        read("\ufeff\u200b\u2060 \n".encode())
    assert raised.value.error_type == "empty_file"
