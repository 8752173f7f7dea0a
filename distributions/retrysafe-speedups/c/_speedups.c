/* Functions that every request runs, in C. Each has its definition in Python; it gives the same bytes, or None where
   something is unusual, and the caller asks the definition then. `_speedups.pyi` has their signatures. */

#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#include "canonical_json.h"

#ifndef ON_STACK_BYTES /* tools/sanitize_speedups.py sets 1: what is allocated has exact bounds */
#define ON_STACK_BYTES 4096
#endif

enum {
    BORN_TEXTS = 5, /* namespace, kind, scope, key, target */
    BORN_ARGUMENTS = 3 + BORN_TEXTS + 1,
    MAX_WORDS = 16,
    MAX_HEADERS = 64,
    NUMBER_BYTES = 24, /* a 64-bit number in digits, with its sign */
};

#define MAX_PART_BYTES (1 << 28) /* so that no sum of sizes overflows; a larger value is left to the definition */

typedef struct {
    const char *bytes;
    size_t size;
} Part;

static char *put_bytes(char *to, Part part) {
    if (part.size) memcpy(to, part.bytes, part.size);
    return to + part.size;
}

static char *put_uint32(char *to, size_t value) {
    for (int shift = 24; shift >= 0; shift -= 8) *to++ = (char)((value >> shift) & 0xff);
    return to;
}

static char *put_hex(char *to, Part part) {
    static const char digits[] = "0123456789abcdef";
    for (size_t each = 0; each < part.size; each++) {
        unsigned char byte = (unsigned char)part.bytes[each];
        *to++ = digits[byte >> 4];
        *to++ = digits[byte & 15];
    }
    return to;
}

static char *put_digits(char *to, long long value) {
    char digits[NUMBER_BYTES];
    int count = 0;
    unsigned long long left = value < 0 ? 0ULL - (unsigned long long)value : (unsigned long long)value;
    do digits[count++] = (char)('0' + left % 10);
    while (left /= 10);
    if (value < 0) *to++ = '-';
    while (count) *to++ = digits[--count];
    return to;
}

/* A word of the Redis protocol begins with its size. The line end behind it is the caller's. */
static char *put_word_size(char *to, size_t size) {
    *to++ = '$';
    to = put_digits(to, (long long)size);
    *to++ = '\r';
    *to++ = '\n';
    return to;
}

static char *put_line_end(char *to) {
    *to++ = '\r';
    *to++ = '\n';
    return to;
}

/* These three are 0 for what the definition has to decide. No error is set then. */

static int get_bytes(PyObject *value, Part *part) {
    if (!PyBytes_CheckExact(value)) return 0;
    part->bytes = PyBytes_AsString(value);
    part->size = (size_t)PyBytes_Size(value);
    return part->size <= MAX_PART_BYTES;
}

static int get_text(PyObject *value, Part *part) {
    Py_ssize_t size;
    if (!PyUnicode_CheckExact(value)) return 0;
    part->bytes = PyUnicode_AsUTF8AndSize(value, &size);
    if (part->bytes == NULL) { /* a lone surrogate */
        PyErr_Clear();
        return 0;
    }
    part->size = (size_t)size;
    return part->size <= MAX_PART_BYTES;
}

static int get_number(PyObject *value, long long *number) {
    int overflow;
    if (!PyLong_CheckExact(value)) return 0;
    *number = PyLong_AsLongLongAndOverflow(value, &overflow);
    return overflow == 0;
}

static PyObject *canonicalize_json(PyObject *module, PyObject *body) {
    Part part;
    (void)module;
    if (!get_bytes(body, &part) || part.size > MAX_BODY_BYTES) Py_RETURN_NONE;
    char on_stack[ON_STACK_BYTES];
    size_t needed = canonical_work_size(part.size);
    char *work = needed <= sizeof on_stack ? on_stack : PyMem_Malloc(needed);
    if (work == NULL) return PyErr_NoMemory();
    size_t size = write_canonical(part.bytes, part.size, work);
    PyObject *text = size ? PyBytes_FromStringAndSize(work, (Py_ssize_t)size) : Py_NewRef(Py_None);
    if (work != on_stack) PyMem_Free(work);
    return text;
}

static PyObject *encode_born(PyObject *module, PyObject *const *given, Py_ssize_t count) {
    Part algorithm, digest, run, texts[BORN_TEXTS];
    long long length;
    (void)module;
    if (count != BORN_ARGUMENTS) {
        PyErr_Format(PyExc_TypeError, "encode_born takes %d arguments, not %zd", BORN_ARGUMENTS, count);
        return NULL;
    }
    int usual = get_text(given[0], &algorithm) && get_bytes(given[1], &digest) && get_number(given[2], &length);
    for (int each = 0; usual && each < BORN_TEXTS; each++) usual = get_text(given[3 + each], &texts[each]);
    if (!usual || !get_bytes(given[3 + BORN_TEXTS], &run)) Py_RETURN_NONE;
    char digits[NUMBER_BYTES];
    Part number = {digits, (size_t)(put_digits(digits, length) - digits)};
    size_t fingerprint = algorithm.size + number.size + 2 * digest.size + 2;
    size_t size = 4 * (1 + BORN_TEXTS + 1) + fingerprint + run.size;
    for (int each = 0; each < BORN_TEXTS; each++) size += texts[each].size;
    PyObject *born = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
    if (born == NULL) return NULL;
    char *to = put_uint32(PyBytes_AsString(born), fingerprint);
    for (int each = 0; each < BORN_TEXTS; each++) to = put_uint32(to, texts[each].size);
    to = put_bytes(put_uint32(to, run.size), algorithm);
    *to++ = ':';
    to = put_bytes(to, number);
    *to++ = ':';
    to = put_hex(to, digest);
    for (int each = 0; each < BORN_TEXTS; each++) to = put_bytes(to, texts[each]);
    put_bytes(to, run);
    return born;
}

/* The names and values of a tuple of pairs, in turn. The number of words, or -1 for what the definition decides. */
static int get_headers(PyObject *headers, Part words[2 * MAX_HEADERS]) {
    if (!PyTuple_CheckExact(headers) || PyTuple_Size(headers) > MAX_HEADERS) return -1;
    int count = 0;
    for (Py_ssize_t each = 0; each < PyTuple_Size(headers); each++) {
        PyObject *pair = PyTuple_GetItem(headers, each);
        if (!PyTuple_CheckExact(pair) || PyTuple_Size(pair) != 2) return -1;
        for (int side = 0; side < 2; side++) {
            if (!get_text(PyTuple_GetItem(pair, side), &words[count++])) return -1;
        }
    }
    return count;
}

static PyObject *encode_answer(PyObject *module, PyObject *const *given, Py_ssize_t count) {
    Part body, gone, words[2 * MAX_HEADERS];
    long long status;
    (void)module;
    if (count != 4) {
        PyErr_Format(PyExc_TypeError, "encode_answer takes 4 arguments, not %zd", count);
        return NULL;
    }
    if (!get_number(given[0], &status) || status < INT32_MIN || status > INT32_MAX) Py_RETURN_NONE;
    if (!get_bytes(given[1], &body) || !get_text(given[3], &gone) || gone.size > UINT8_MAX) Py_RETURN_NONE;
    int number = get_headers(given[2], words);
    if (number < 0) Py_RETURN_NONE;
    uint64_t headers = 4 + 4 * (uint64_t)number;
    for (int each = 0; each < number; each++) headers += words[each].size;
    if (headers > MAX_PART_BYTES) Py_RETURN_NONE;
    size_t size = 4 + 1 + 4 + gone.size + (size_t)headers + body.size;
    PyObject *answer = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
    if (answer == NULL) return NULL;
    char *to = put_uint32(PyBytes_AsString(answer), (uint32_t)status);
    *to++ = (char)gone.size;
    to = put_bytes(put_uint32(to, (size_t)headers), gone);
    to = put_uint32(to, (size_t)number);
    for (int each = 0; each < number; each++) to = put_uint32(to, words[each].size);
    for (int each = 0; each < number; each++) to = put_bytes(to, words[each]);
    put_bytes(to, body);
    return answer;
}

static PyObject *pack_key(PyObject *module, PyObject *const *given, Py_ssize_t count) {
    Part head, id;
    (void)module;
    if (count != 2) {
        PyErr_Format(PyExc_TypeError, "pack_key takes 2 arguments, not %zd", count);
        return NULL;
    }
    if (!get_bytes(given[0], &head) || !get_bytes(given[1], &id)) Py_RETURN_NONE;
    char begin[NUMBER_BYTES + 3];
    Part size = {begin, (size_t)(put_word_size(begin, head.size + 2 * id.size) - begin)};
    PyObject *key = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(size.size + head.size + 2 * id.size + 2));
    if (key == NULL) return NULL;
    put_line_end(put_hex(put_bytes(put_bytes(PyBytes_AsString(key), size), head), id));
    return key;
}

static PyObject *pack_words(PyObject *module, PyObject *const *given, Py_ssize_t count) {
    Part words[MAX_WORDS];
    char digits[MAX_WORDS][NUMBER_BYTES];
    uint64_t room = 0;
    (void)module;
    if (count > MAX_WORDS) Py_RETURN_NONE;
    for (Py_ssize_t each = 0; each < count; each++) {
        long long number;
        if (!get_bytes(given[each], &words[each])) {
            if (!get_number(given[each], &number)) Py_RETURN_NONE;
            words[each].bytes = digits[each];
            words[each].size = (size_t)(put_digits(digits[each], number) - digits[each]);
        }
        char begin[NUMBER_BYTES + 3];
        room += (uint64_t)(put_word_size(begin, words[each].size) - begin) + words[each].size + 2;
    }
    if (room > MAX_PART_BYTES) Py_RETURN_NONE;
    PyObject *packed = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)room);
    if (packed == NULL) return NULL;
    char *to = PyBytes_AsString(packed);
    for (Py_ssize_t each = 0; each < count; each++) {
        to = put_line_end(put_bytes(put_word_size(to, words[each].size), words[each]));
    }
    return packed;
}

#define WITH_MANY(function) (PyCFunction)(void (*)(void))(function), METH_FASTCALL

static PyMethodDef functions[] = {
    {"canonicalize_json", canonicalize_json, METH_O, "core/fingerprint.py: canonicalize_json"},
    {"encode_born", WITH_MANY(encode_born), "stores/redis/rows.py: encode_born"},
    {"encode_answer", WITH_MANY(encode_answer), "stores/redis/rows.py: encode_answer"},
    {"pack_key", WITH_MANY(pack_key), "stores/redis/packing.py: the key of a record"},
    {"pack_words", WITH_MANY(pack_words), "stores/redis/packing.py: arguments of a script"},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_speedups", .m_size = 0, .m_methods = functions, .m_slots = slots,
};

PyMODINIT_FUNC PyInit__speedups(void) { return PyModuleDef_Init(&definition); }
