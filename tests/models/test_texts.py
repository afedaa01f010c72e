"""Texts from files: every format and oddity, what is text and what a label, and refusals that name file, line and remedy."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secformer.errors import InputError, SettingsError, TableError
from secformer.models.columns import read_table
from secformer.models.tables import read_rows
from secformer.models.texts import read_texts

SAID = ["the cat sat on a mat", "it was a good film", "dogs ran home again", 'a "bad" film, they said', "over and out"]


@pytest.fixture
def write(tmp_path):
    """A file of this name with this content."""

    def make(name: str, content: str | bytes):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return make


def rows(*fields, ending="\n"):
    return "".join("\t".join(map(str, row)) + ending for row in fields)


# Lines


@pytest.mark.parametrize("name", ["a.txt", "a.text", "a", "a.TXT", "a.2024"])
def test_a_line_a_text(write, name):
    texts = read_texts(write(name, "\n".join(SAID)))
    assert texts.first == tuple(SAID) and texts.second is None and texts.lines == (1, 2, 3, 4, 5)
    assert repr(texts).startswith("Texts(5 texts of") and "cat" not in repr(texts)


def test_line_ends_blank_lines_and_a_byte_order_mark(write):
    texts = read_texts(write("a.txt", "\ufeffone cat\r\n\r\n \t \n  two cats \r\n\u2028three\x0bcats\x85 \n\n"))
    assert texts.first == ("one cat", "  two cats ", "\u2028three\x0bcats\x85 ")
    assert texts.lines == (1, 4, 5)


def test_a_limit_and_a_gzip(write):
    path = write("a.txt.gz", gzip.compress("\n".join(SAID).encode()))
    assert read_texts(path, limit=2).first == tuple(SAID[:2]) and len(read_texts(path, limit=99)) == 5


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ("sentence\tlabel\nthe cat\t1\n", "a table with tabs"),
        ("a film\tpos\nthe cat\tneg\n", "a table with tabs"),
        ('{"sentence": "the cat"}\n{"sentence": "a dog"}\n', "JSON"),
        ("sentence,label\nthe cat,1\n", "a table with a header"),
        ('"text";"label"\n"the cat";1\n', "a table with a header"),
        ("sentence1\nthe cat\n", "a table with a header"),
    ],
)
def test_a_table_is_not_taken_for_lines(write, content, found):
    path = write("a.txt", content)
    with pytest.raises(TableError, match=rf"a\.txt' line 1: this looks like {found}.*--format"):
        read_texts(path)
    assert len(read_texts(path, format="lines")) == 2  # who insists gets what they ask for


def test_stray_tabs_and_commas_are_text(write):
    said = ["the cat,\tsat", "text, label", "a dog; a cat", "{"]
    assert read_texts(write("a.txt", "\n".join(said))).first == tuple(said)


def test_a_file_of_numbers_holds_no_text(write):
    for name in ("labels.txt", "labels.csv", "labels.tsv"):
        with pytest.raises(TableError, match="holds numbers, not texts"):
            read_texts(write(name, "1\n0\n1\n"), header=False)


# Tables with tabs


def test_glue_as_it_is_shipped_here(write):
    """A header, no quoting: a stray quote is a character."""
    pairs = [('" The pie business fits .', 'He said it " fits " .', 1), ("A cat .", '"A dog."', 0)]
    texts = read_texts(write("mrpc.tsv", rows(("sentence1", "sentence2", "label"), *pairs)))
    assert texts.first == tuple(pair[0] for pair in pairs) and texts.second == tuple(pair[1] for pair in pairs)
    assert texts.columns == ("sentence1", "sentence2") and texts.lines == (2, 3)
    texts = read_texts(write("sst2.tsv", rows(("sentence", "label"), ("it was good", 1), ("a bad film", 0))))
    assert texts.first == ("it was good", "a bad film") and texts.second is None


def test_glue_as_it_was_published(write):
    """CoLA without a header, MRPC and QQP with identifiers, MNLI with a dozen columns, STS-B with a genre."""
    cola = [
        ("gj04", 1, "", "Our friends won't buy it."),
        ("gj04", 0, "*", "They drank the pub."),
        ("c-05", 1, "", "a b"),
    ]
    texts = read_texts(write("cola.tsv", rows(*cola)))
    assert texts.first == tuple(row[3] for row in cola) and texts.columns == ("4",) and texts.lines[0] == 1
    mrpc = [("Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"), (1, 702876, 702977, "He said so .", '" So . "')]
    assert read_texts(write("mrpc.tsv", "\ufeff" + rows(*mrpc, ending="\r\n"))).columns == ("#1 String", "#2 String")
    qnli = [("index", "question", "sentence", "label"), (0, "Who came?", "They came in May.", "not_entailment")]
    assert read_texts(write("qnli.tsv", rows(*qnli))).columns == ("question", "sentence")
    mnli = [
        ("index", "promptID", "genre", "sentence1_parse", "sentence1", "sentence2", "label1", "gold_label"),
        (0, "31193n", "government", "( ( Concept ) )", "Concept and cream", "Two parts", "neutral", "neutral"),
        (1, "101457e", "telephone", "( you know )", "you know so", "You lose them", "entailment", "entailment"),
    ]
    assert read_texts(write("mnli.tsv", rows(*mnli))).columns == ("sentence1", "sentence2")
    stsb = [
        ("index", "genre", "filename", "year", "sentence1", "sentence2", "score"),
        (0, "news", "a b", 2012, "x y", "z w", 5),
    ]
    assert read_texts(write("stsb.tsv", rows(*stsb))).second == ("z w",)


def test_quotes_around_a_single_field_are_characters(write):
    table = rows(("sentence", "label"), ('"Hello," she said. "Bye."', 1), ('"frailty"', 0), ('" alone', 1))
    assert read_texts(write("a.tsv", table)).first == ('"Hello," she said. "Bye."', '"frailty"', '" alone')
    assert read_texts(write("b.tsv", rows(("sentence", "label"), ('"frailty"', 0)))).first == ('"frailty"',)


@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC])
def test_a_table_with_tabs_from_a_spreadsheet(write, quoting):
    said = [('He said "no"', 1), ("a tab\there", 0), ("two\nlines", 1), ("plain words", 0)]
    text = io.StringIO()
    csv.writer(text, delimiter="\t", quoting=quoting).writerows([("sentence", "label"), *said])
    texts = read_texts(write("a.tsv", text.getvalue()))
    assert texts.first == tuple(sentence for sentence, _ in said) and texts.lines == (2, 3, 4, 6)


# CSV


def test_csv_with_quotes_lines_and_commas_inside(write):
    content = 'id,text,label\r\n1,"one, two",pos\r\n2,"said ""so""\r\nand left",neg\r\n3,5" disk,pos\r\n'
    texts = read_texts(write("a.csv", "\ufeff" + content))
    assert texts.first == ("one, two", 'said "so"\nand left', '5" disk') and texts.lines == (2, 3, 5)


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_delimiters(write, delimiter):
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter).writerows([("Text", "Wert"), *((f"a, b; c\td {n}", n) for n in range(3))])
    assert read_texts(write("a.csv", text.getvalue())).first == ("a, b; c\td 0", "a, b; c\td 1", "a, b; c\td 2")


def test_one_column_needs_no_delimiter(write):
    assert read_texts(write("a.csv", 'sentence\n"one, two"\nthree four\n')).first == ("one, two", "three four")
    assert read_texts(write("b.csv", ",sentence\n0,one\n1,two\n")).first == ("one", "two")  # with pandas' index
    assert read_texts(write("c.csv", ",0\n0,one two\n1,two three\n")).first == ("one two", "two three")


texts_of_any_kind = st.lists(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r"), min_size=1).filter(str.strip),
    min_size=1,
    max_size=8,
)


@settings(max_examples=60, deadline=None)
@given(said=texts_of_any_kind, mark=st.booleans(), quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]))
def test_any_csv_comes_back(tmp_path_factory, said, mark, quoting):
    said = [f"{text}a" for text in said]
    path, text = tmp_path_factory.getbasetemp() / "any.csv", io.StringIO()
    csv.writer(text, quoting=quoting).writerows([("label", "text"), *((n, each) for n, each in enumerate(said))])
    path.write_bytes(("\ufeff" * mark + text.getvalue()).encode())
    assert read_texts(path).first == tuple(said)


@settings(max_examples=60, deadline=None)
@given(said=texts_of_any_kind)
def test_any_jsonl_comes_back(tmp_path_factory, said):
    said = [f"{text}a" for text in said]
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    path.write_text("\n".join(json.dumps({"id": n, "text": text}) for n, text in enumerate(said)), encoding="utf-8")
    assert read_texts(path).first == tuple(said)


@settings(max_examples=60, deadline=None)
@given(said=texts_of_any_kind)
def test_any_unquoted_table_comes_back(tmp_path_factory, said):
    """What a field can hold when nothing is quoted: all but tabs and line ends. A stray quote keeps it unquoted."""
    said = [re.sub(r"[\t\n]", " ", text) + "a" for text in said]
    path = tmp_path_factory.getbasetemp() / "any.tsv"
    path.write_bytes(rows(("text", "label"), ('" stray', 1), *((text, 0) for text in said)).encode())
    assert read_texts(path).first == ('" stray', *said)


@pytest.mark.parametrize("content", [",", '""', ",\n", "\ufeff,", " , \n\n,"])
def test_fields_without_anything_in_them_are_no_texts(write, content):
    with pytest.raises(TableError, match="holds no text"):
        read_texts(write("empty.csv", content))


@settings(max_examples=150, deadline=None)
@given(
    content=st.binary(max_size=60) | st.text(max_size=60).map(str.encode),
    ending=st.sampled_from(["txt", "csv", "tsv", "jsonl"]),
)
def test_any_bytes_give_texts_or_a_refusal_that_names_the_file(tmp_path_factory, content, ending):
    path = tmp_path_factory.getbasetemp() / f"bytes.{ending}"
    path.write_bytes(content)
    try:
        texts = read_texts(path)
    except TableError as error:
        assert f"bytes.{ending}'" in str(error) and error.code == "input.table"
        return
    assert texts.first and all(text.strip() for text in texts.first) and len(texts.lines) == len(texts.first)


# JSONL


def test_jsonl(write):
    lines = [
        {"idx": 3, "premise": "a cat", "hypothesis": "a dog", "label": 1, "more": {"a": 1}},
        {"idx": 4, "premise": "it sat", "hypothesis": "it ran", "label": None},
    ]
    texts = read_texts(write("a.jsonl", "\ufeff" + "\n\n".join(map(json.dumps, lines))))
    assert (texts.first, texts.second, texts.lines) == (("a cat", "it sat"), ("a dog", "it ran"), (1, 3))
    assert read_texts(write("a.ndjson", '"a cat"\n"label"\n')).first == ("a cat", "label")
    assert read_texts(write("a.json", '{"text": "cat", "label": "pos"}')).first == ("cat",)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ('{"text": "a cat"}\n{"text": \n', "line 2: not JSON"),
        ('[{"text": "a cat"}]', "line 1: neither an object nor a string: write one object a line"),
        ('{"text": "a cat"}\n3\n', "line 2: neither"),
        ('{"text": "a cat"}\n"a dog"\n', "line 2: not the same kind of value as in line 1"),
        ('{"text": "a cat"}\n\n{"txt": "a dog"}\n', "several columns may be the text"),
        ('{"text": "a cat"}\n\n{"label": 3}\n', "line 3: no text in column 'text'"),
        ('{"text": "\\ud800 cat"}', "line 1: column 'text' is not valid Unicode"),
        ('{"text": ["a", "cat"]}', "holds lists or objects, not texts"),
        ('{"text": 3, "label": 4}', r"no column is surely text: 'text' \(number\), 'label' \(number\)"),
        ("[" * 5000, "line 1: not JSON"),
    ],
)
def test_broken_jsonl(write, content, complaint):
    with pytest.raises(TableError, match=complaint):
        read_texts(write("a.jsonl", content))


# Labels are not text


@pytest.mark.parametrize(
    "other",
    [
        ["pos", "neg", "pos", "neg", "pos"],
        ["very good", "very bad", "very good", "very good", "very bad"],
        ["0.5", "1", "-3e-5", "nan", "7"],
        ["2024-01-05 12:30", "2024-01-06 7:10", "2024-02-05 12:30", "5.1.2024", "12:30"],
        ["dev-1", "dev-2", "dev-3", "x9", "http://a.b/c"],
        ["", "", "", "", ""],
        ["True", "False", "True", "True", "False"],
    ],
)
@pytest.mark.parametrize("name", ["Bewertung", "label"])
def test_what_is_no_text_is_told_by_its_contents(write, other, name):
    table = rows((name, "Satz"), *zip(other, SAID, strict=True))
    assert read_texts(write("a.tsv", table), header=True).first == tuple(SAID)
    assert read_texts(write("a.tsv", table), header=True).columns == ("Satz",)


def test_what_is_no_text_is_told_by_its_name(write):
    table = rows(("author", "Satz"), *((f"Anna {n} Smith", text) for n, text in enumerate(SAID)))
    assert read_texts(write("a.tsv", table)).columns == ("Satz",)


def test_single_words_and_languages_without_spaces_can_be_text(write):
    assert read_texts(write("a.tsv", rows(("text", "label"), ("good", 1), ("bad", 0)))).first == ("good", "bad")
    assert read_texts(write("b.tsv", rows(("Satz", "label"), ("猫が座った", 1), ("犬が走る", 0)))).columns == ("Satz",)


def test_two_texts_that_are_no_usual_pair_are_left_to_the_user(write):
    path = write("a.csv", "title,body,label\nthe cat,it sat down,1\na dog,it ran home,0\n")
    with pytest.raises(
        TableError, match=r"a\.csv': several columns may be the text: 'title' \(text\), 'body' \(text\)"
    ):
        read_texts(path)
    assert read_texts(path, ["body"]).first == ("it sat down", "it ran home")
    texts = read_texts(path, ["Body", "TITLE"])
    assert (texts.first[0], texts.second) == ("it sat down", ("the cat", "a dog"))


def test_nothing_that_is_surely_text(write):
    with pytest.raises(
        TableError, match=r"no column is surely text: 'id' \(code\), 'class' \(code\); name it with --column"
    ):
        read_texts(write("a.csv", "id,class\nx1,pos\nx2,neg\n"))


def test_columns_asked_for(write):
    path = write("a.tsv", rows(("sentence", "label", "sentence"), ("a cat", 1, "a dog")))
    for columns, complaint in (
        (["sentense"], r"no column 'sentense'; its columns are 'sentence', 'label', 'sentence'"),
        (["sentence"], "several columns 'sentence'"),
        (["label"], "'label' holds numbers, not texts"),
    ):
        with pytest.raises(TableError, match=complaint):
            read_texts(path, columns)
    for columns in (["a", "a"], ["a", "b", "c"]):
        with pytest.raises(SettingsError, match="one column of texts, or two"):
            read_texts(path, columns)


def test_a_class_by_name_is_what_the_user_asked_for(write):
    path = write("a.csv", "text,label\na cat,pos\na dog,neg\n")
    assert read_texts(path, ["label"]).first == ("pos", "neg")


# Headers


def test_without_a_header_columns_have_numbers(write):
    path = write("a.tsv", rows(("the cat sat on a mat", "pos"), ("dogs run", "neg"), ("it is good", "pos")))
    assert read_texts(path).first[0] == "the cat sat on a mat"
    assert read_texts(path, ["2"]).first == ("pos", "neg", "pos")
    assert read_table(path).column("1").fields[1] == "dogs run"


@pytest.mark.parametrize(
    ("table", "header"),
    [
        ([("Satz", "Wert"), ("ein Hund", 0.5), ("eine Katze", 1)], True),  # a number column with a word on top
        ([("ein Hund", "gut"), ("eine Katze", "schlecht"), ("ein Tier", "gut")], False),  # a value that comes again
        ([("ein Hund", 1), ("eine Katze", 0)], False),  # a number is no name
        ([("Satz", "Urteil"), *((f"Satz Nummer {n}", "gut" if n % 2 else "schlecht") for n in range(9))], True),
        ([("ein Satz mit vielen Worten darin", "gut"), ("noch einer", "schlecht")], False),
        ([("id", "Satz"), ("x1", "ein Hund")], True),  # a usual name
        ([("0", "1"), ("ein Hund", "gut")], True),  # pandas
        ([("text", "label"), ("text", "gut"), ("a label", "label")], True),  # usual names only, though they come again
        ([("№", "text"), ("x1", "ein Hund")], True),  # a sign is no number
    ],
)
def test_headers_are_found(write, table, header):
    assert len(read_table(write("a.tsv", rows(*table))).lines) == len(table) - header


def test_a_doubtful_header_is_left_to_the_user(write):
    path = write("a.tsv", rows(("Satz", "Urteil"), ("ein Hund", "gut"), ("eine Katze", "schlecht")))
    with pytest.raises(
        TableError, match=r"a\.tsv' line 1: this may be a header or the first text: say --header or --no-"
    ):
        read_texts(path)
    with pytest.raises(TableError, match="line 1: this may be a header"):
        read_texts(write("b.tsv", rows(("3", "date", "ein Hund"), ("4", "place", "eine Katze"))))
    assert len(read_texts(path, header=True)) == 2
    assert len(read_texts(path, ["satz"])) == 2  # its name is there: so it is one
    assert len(read_texts(path, ["1"], header=False)) == 3


# Broken files


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("a.tsv", b"", "holds no text"),
        ("a.csv", b"\xef\xbb\xbf\r\n \n", "holds no text"),
        ("a.jsonl", b"\n", "holds no text"),
        ("a.tsv", b"sentence\tlabel\n", "holds a header and no text"),
        ("a.tsv", b"sentence\tlabel\na cat\t1\na dog\n", "line 3: 1 fields, where line 1 has 2"),
        ("a.tsv", b"sentence\tlabel\na cat\t1\t\n", "line 2: 3 fields, where line 1 has 2"),
        ("a.csv", b"sentence,label\na cat,1\n\na dog, a cat,1\n", "line 4: 3 fields, where line 1 has 2"),
        ("a.csv", b'sentence,label\na cat,1\n" the pie,1\nx,2\n', "line 3: quotes that do not match"),
        ("a.csv", b'sentence,label\n"a" cat,1\n', "line 2: quotes that do not match"),
        ("a.csv", b'"sentence,label\n', "line 1: quotes that do not match"),
        ("a.txt", b"a cat\ncaf\xe9\n", "line 2: byte 4 is not UTF-8: save the file as UTF-8"),
        ("a.csv", b"text,label\n\xff,1\n", "line 2: byte 1 is not UTF-8"),
        ("a.txt", b"a\0cat\n", "line 1: a NUL byte"),
        ("a.txt", b"a cat\ra dog\r", "line 1: a carriage return inside a line"),
        ("a.csv", "text,label\n".encode("utf-16"), "is UTF-16: save it as UTF-8"),
        ("a.csv", b"PK\x03\x04....", "a spreadsheet: export it as CSV"),
        ("a.tsv", b"sentence\tlabel\n\t1\n", "line 2: no text in column 'sentence': remove the row or fill it"),
        ("a.tsv", b"sentence1\tsentence2\na cat\t \n", "line 2: no text in column 'sentence2'"),
    ],
)
def test_broken_files(write, name, content, complaint):
    with pytest.raises(TableError, match=rf"'.*{name}'.*{complaint}|'.*{name}' {complaint}"):
        read_texts(write(name, content))


def test_files_that_cannot_be_read(write, tmp_path):
    whole = bytearray(gzip.compress(b"the cat sat on a mat\n" * 200))
    damaged = bytearray(whole)
    damaged[15:25] = b"\xff" * 10
    write("no.gz", b"not gzip")
    write("cut.gz", bytes(whole[:-20]))
    write("damaged.gz", bytes(damaged))
    for name in ("nowhere.txt", "", "no.gz", "cut.gz", "damaged.gz"):
        with pytest.raises(InputError, match="cannot be read as text"):
            read_texts(tmp_path / name)


def test_an_empty_field_beyond_the_limit_is_nobodys_trouble(write):
    path = write("a.tsv", rows(("sentence", "label"), ("a cat", 1), ("", 0)))
    assert read_texts(path, limit=1).first == ("a cat",)
    with pytest.raises(TableError, match="line 3: no text"):
        read_texts(path)


def test_an_unknown_format(write):
    with pytest.raises(SettingsError, match="unknown format 'xml': known are lines, csv, tsv, jsonl"):
        read_texts(write("a.txt", "a cat"), format="xml")


def test_nothing_read_is_printed(write):
    path = write("a.csv", "text,label\nsecret words,1\n")
    for thing in (read_rows(path), read_table(path), read_table(path).column("text"), read_texts(path)):
        assert "secret" not in repr(thing)
