from collections.abc import Iterator
from elmokit.io.text_files import read_lines
from elmokit.text.columns import ColumnSentence, read_column_sentences
def read_columns(path: str) -> Iterator[ColumnSentence]:
    return read_column_sentences(path, enumerate(read_lines(path), start=1))
