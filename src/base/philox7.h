/* philox7.h - Philox4x32-7: the fewest rounds in which its authors found no fault (BigCrush), other bits than tr_philox
 * has. For masks, which draw a number for every score of attention. */
#ifndef TR_BASE_PHILOX7_H
#define TR_BASE_PHILOX7_H

#include "base/rng.h"

struct tr_philox tr_philox7(uint64_t key, uint64_t hi, uint64_t lo);

#endif
