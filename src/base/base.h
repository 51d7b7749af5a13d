/* base.h - room header of base: everything below every other room. */
#ifndef TR_BASE_BASE_H
#define TR_BASE_BASE_H

#include "base/compiler.h"
#include "base/status.h"
#include "base/dtype.h"
#include "base/quant.h"
#include "base/packed.h"
#include "base/str.h"
#include "base/json.h"
#include "base/file.h"
#include "base/out.h"
#include "base/misc.h"
#include "base/module.h"
#include "base/batch.h"
#include "base/phase.h"
#include "base/rng.h"
#include "base/run.h"
#include "base/pool.h"
#include "base/factor.h"
#include "base/work.h"
#include "base/banned.h"

#endif
