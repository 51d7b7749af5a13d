/* guess.h - a machine by a name that others wrote. */
#ifndef FORECAST_GUESS_H
#define FORECAST_GUESS_H

#include "plan/machine.h"

/* tr_machine_find for names of published tables. A chip may be named by its family ("NVIDIA H100 SXM"); an unknown
 * cluster becomes the usual one of the chip. *is_guess: the name was not one of ours. */
enum tr_status tr_machine_guess(const char *name, struct tr_machine *out, bool *is_guess);

#endif
