/* canonical_json.h says what this is. No Python in here: the fuzzer of tools/fuzz_speedups.py runs it with sanitizers. */

#include "canonical_json.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const char *key; /* in the body, without its quotes */
    uint32_t key_size;
    uint32_t start; /* where `"key":value` begins in the text */
    uint32_t size;
} Member;

typedef struct {
    const char *at; /* what is left of the body, up to `end` */
    const char *end;
    char *text;
    size_t used;
    size_t room; /* of the text, and of `spare` */
    char *spare;
    size_t open; /* how many of the members are in use */
    Member members[MAX_OPEN_MEMBERS];
} Reader;

static int read_value(Reader *reader, int depth);

size_t canonical_work_size(size_t body_size) { return 2 * (2 * body_size + 64); }

static int put(Reader *reader, const char *bytes, size_t size) {
    if (size > reader->room - reader->used) return 0; /* many short numbers with a point: they become longer */
    memcpy(reader->text + reader->used, bytes, size);
    reader->used += size;
    return 1;
}

static void skip_space(Reader *reader) {
    const char *at = reader->at;
    while (at < reader->end && (*at == ' ' || *at == '\t' || *at == '\n' || *at == '\r')) at++;
    reader->at = at;
}

static int next_is(const Reader *reader, char wanted) { return reader->at < reader->end && *reader->at == wanted; }

static int is_digit(const Reader *reader) { return reader->at < reader->end && *reader->at >= '0' && *reader->at <= '9'; }

static size_t skip_digits(Reader *reader) {
    const char *start = reader->at;
    while (is_digit(reader)) reader->at++;
    return (size_t)(reader->at - start);
}

static int read_string(Reader *reader) {
    const char *start = reader->at, *at = start + 1;
    for (;; at++) {
        if (at == reader->end) return 0;
        unsigned char byte = (unsigned char)*at;
        if (byte == '"') break;
        if (byte < 0x20 || byte > 0x7e || byte == '\\') return 0; /* DEL is written with an escape, too */
    }
    reader->at = at + 1;
    return put(reader, start, (size_t)(reader->at - start));
}

/* A number with a point or exponent keeps its literal, as an object with one key that starts with NUL. */
static int put_literal(Reader *reader, const char *literal, size_t size) {
    static const char before[] = "{\"\\u0000n\":\"", after[] = "\"}";
    return put(reader, before, sizeof before - 1) && put(reader, literal, size) && put(reader, after, sizeof after - 1);
}

static int read_number(Reader *reader) {
    const char *start = reader->at;
    int negative = *start == '-', whole = 1;
    if (negative) reader->at++;
    if (!is_digit(reader)) return 0;
    int zero = *reader->at == '0';
    size_t digits = 1;
    if (zero) {
        reader->at++; /* a digit behind it is no JSON: whoever reads on finds no comma */
    } else {
        digits = skip_digits(reader);
    }
    if (next_is(reader, '.')) {
        whole = 0;
        reader->at++;
        if (skip_digits(reader) == 0) return 0;
    }
    if (next_is(reader, 'e') || next_is(reader, 'E')) {
        whole = 0;
        reader->at++;
        if (next_is(reader, '+') || next_is(reader, '-')) reader->at++;
        if (skip_digits(reader) == 0) return 0;
    }
    size_t size = (size_t)(reader->at - start);
    if (!whole) return put_literal(reader, start, size);
    if (digits > MAX_DIGITS || (negative && zero)) return 0;
    return put(reader, start, size);
}

static int read_word(Reader *reader, const char *word, size_t size) {
    if ((size_t)(reader->end - reader->at) < size || memcmp(reader->at, word, size) != 0) return 0;
    reader->at += size;
    return put(reader, word, size);
}

static int read_array(Reader *reader, int depth) {
    reader->at++;
    if (!put(reader, "[", 1)) return 0;
    skip_space(reader);
    if (next_is(reader, ']')) {
        reader->at++;
        return put(reader, "]", 1);
    }
    for (;;) {
        if (!read_value(reader, depth + 1)) return 0;
        skip_space(reader);
        if (!next_is(reader, ',')) break;
        reader->at++;
        if (!put(reader, ",", 1)) return 0;
        skip_space(reader);
    }
    if (!next_is(reader, ']')) return 0;
    reader->at++;
    return put(reader, "]", 1);
}

static int compare_members(const void *left, const void *right) {
    const Member *one = left, *two = right;
    size_t common = one->key_size < two->key_size ? one->key_size : two->key_size;
    int found = memcmp(one->key, two->key, common);
    return found != 0 ? found : (one->key_size > two->key_size) - (one->key_size < two->key_size);
}

/* Puts the members of one object into the order of their keys. They fill the text from `start` to its end. */
static int sort_members(Reader *reader, Member *members, size_t count, size_t start) {
    qsort(members, count, sizeof *members, compare_members);
    for (size_t each = 1; each < count; each++) {
        if (compare_members(&members[each - 1], &members[each]) == 0) return 0;
    }
    memcpy(reader->spare + start, reader->text + start, reader->used - start);
    char *to = reader->text + start;
    for (size_t each = 0; each < count; each++) {
        if (each > 0) *to++ = ',';
        memcpy(to, reader->spare + members[each].start, members[each].size);
        to += members[each].size;
    }
    return 1;
}

static int read_member(Reader *reader, int depth) {
    if (!next_is(reader, '"')) return 0;
    Member member = {.key = reader->at + 1, .start = (uint32_t)reader->used};
    if (!read_string(reader)) return 0;
    member.key_size = (uint32_t)(reader->at - 1 - member.key);
    skip_space(reader);
    if (!next_is(reader, ':')) return 0;
    reader->at++;
    if (!put(reader, ":", 1)) return 0;
    skip_space(reader);
    if (!read_value(reader, depth + 1)) return 0;
    member.size = (uint32_t)(reader->used - member.start);
    if (reader->open == MAX_OPEN_MEMBERS) return 0;
    reader->members[reader->open++] = member;
    return 1;
}

static int read_object(Reader *reader, int depth) {
    reader->at++;
    if (!put(reader, "{", 1)) return 0;
    skip_space(reader);
    if (next_is(reader, '}')) {
        reader->at++;
        return put(reader, "}", 1);
    }
    size_t start = reader->used, first = reader->open;
    int sorted = 1;
    for (;;) {
        if (!read_member(reader, depth)) return 0;
        Member *last = &reader->members[reader->open - 1];
        if (reader->open - first > 1 && compare_members(last - 1, last) >= 0) sorted = 0;
        skip_space(reader);
        if (!next_is(reader, ',')) break;
        reader->at++;
        if (!put(reader, ",", 1)) return 0;
        skip_space(reader);
    }
    if (!next_is(reader, '}')) return 0;
    reader->at++;
    if (!sorted && !sort_members(reader, &reader->members[first], reader->open - first, start)) return 0;
    reader->open = first;
    return put(reader, "}", 1);
}

static int read_value(Reader *reader, int depth) {
    if (depth > MAX_DEPTH || reader->at == reader->end) return 0;
    switch (*reader->at) {
    case '"': return read_string(reader);
    case '{': return read_object(reader, depth);
    case '[': return read_array(reader, depth);
    case 't': return read_word(reader, "true", 4);
    case 'f': return read_word(reader, "false", 5);
    case 'n': return read_word(reader, "null", 4);
    default: return (*reader->at == '-' || is_digit(reader)) && read_number(reader);
    }
}

size_t write_canonical(const char *body, size_t body_size, char *work) {
    if (body_size == 0 || body_size > MAX_BODY_BYTES) return 0;
    size_t room = canonical_work_size(body_size) / 2;
    Reader reader; /* the members are not set: each is written before it is read */
    reader.at = body;
    reader.end = body + body_size;
    reader.text = work;
    reader.used = 0;
    reader.room = room;
    reader.spare = work + room;
    reader.open = 0;
    skip_space(&reader);
    if (!read_value(&reader, 1)) return 0;
    skip_space(&reader);
    return reader.at == reader.end ? reader.used : 0;
}
