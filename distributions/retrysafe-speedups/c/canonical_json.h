/* Canonical JSON of usual bodies. The definition is `canonicalize_json` in retrysafe/core/fingerprint.py.

   Usual means: ASCII; strings without escapes and control characters; integers of at most MAX_DIGITS digits; no key
   twice in an object; not deep, not wide, not large. For such a body the text is byte for byte that of the definition.
   For every other body, valid or not, nothing is decided here: the caller asks the definition. */

#ifndef RETRYSAFE_CANONICAL_JSON_H
#define RETRYSAFE_CANONICAL_JSON_H

#include <stddef.h>

enum {
    MAX_BODY_BYTES = 64 * 1024,
    MAX_DEPTH = 32,
    MAX_OPEN_MEMBERS = 256, /* of all objects that are open at one time */
    MAX_DIGITS = 18,
};

/* How many bytes `work` must have for a body of this size: the text, and as much again to sort members in. */
size_t canonical_work_size(size_t body_size);

/* The size of the canonical text, which begins at `work`; 0 if the body is not a usual one. */
size_t write_canonical(const char *body, size_t body_size, char *work);

#endif
