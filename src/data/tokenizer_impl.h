/* tokenizer_impl.h - what tokenizer.c (use) and tokenizer_load.c (reading the files) share. */
#ifndef TR_DATA_TOKENIZER_IMPL_H
#define TR_DATA_TOKENIZER_IMPL_H

#include "data/tokenizer.h"

enum { TR_BYTES = 256 };

/* An added token: found in the text before anything else, as it stands. */
struct tr_added {
    char *text;
    size_t n;
    int32_t id;
};

/* Sorted by id, for decoding. */
struct tr_id_row {
    int32_t id;
    int32_t added; /* index into added, or -1 */
    uint8_t byte;
};

struct tr_tokenizer {
    int32_t id_of_byte[TR_BYTES];
    struct tr_added *added; /* by first byte, then longest first, then text */
    size_t n_added;
    size_t added_first[TR_BYTES + 1]; /* those that start with byte b: [added_first[b], added_first[b + 1]) */
    struct tr_id_row *rows;
    size_t n_rows; /* 256 + n_added */
    int32_t eos;
};

/* GPT-2's bytes_to_unicode: printable Latin-1 bytes stand for themselves, the others for U+0100 onward in order. */
uint32_t tr_byte_char(unsigned b);

#endif
