/* Lets a Python process switch callgrind's counting on and off from inside (benchmarks/callgrind.py). */

#include <valgrind/callgrind.h>

void count_begin(void) {
    CALLGRIND_START_INSTRUMENTATION;
    CALLGRIND_ZERO_STATS;
}

void count_mark(void) { CALLGRIND_DUMP_STATS; }

void count_end(void) { CALLGRIND_STOP_INSTRUMENTATION; }
