"""Reads the flattened word lists of TensorRT-LLM, as its engine would."""


def words_of(table, row):
    """The words of a flattened list: [B, 2, n] → lists of tokens."""
    if table is None or table.shape[-1] == 0:
        return []
    words, start = [], 0
    for end in table[row, 1]:
        if end < 0:
            break
        words.append(table[row, 0, start:end].tolist())
        start = end
    return words
