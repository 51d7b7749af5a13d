/* adafactor.h - constants of Adafactor that kernels of all devices share: those of transformers' Adafactor. */
#ifndef TR_OPS_ADAFACTOR_H
#define TR_OPS_ADAFACTOR_H

#define TR_ADAFACTOR_EPS   1e-30f /* added to the square of a gradient */
#define TR_ADAFACTOR_LEAST 1e-3   /* the least root mean square of a parameter that its rate is multiplied by */
#define TR_ADAFACTOR_CLIP  1.0    /* the largest root mean square of an update */

/* Where sums begin in the view `sums`: that of the parameter's squares, of each row, of each column. */
enum { TR_SUM_P, TR_SUM_ROWS };

#endif
