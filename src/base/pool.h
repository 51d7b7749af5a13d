/* pool.h - threads that share one loop. Kernels must give the same bits for any number of threads: a task owns its
 * outputs, and tasks are cut by problem size only. */
#ifndef TR_BASE_POOL_H
#define TR_BASE_POOL_H

#include "base/status.h"
#include <pthread.h>

struct tr_pool;

/* n_threads counts the caller; 0 = one per core this process may use. */
enum tr_status tr_pool_open(int n_threads, struct tr_pool **out);
void tr_pool_close(struct tr_pool *p);
int tr_pool_threads(const struct tr_pool *p); /* NULL pool = 1 */

/* fn(ctx, task, worker) for task 0..n_tasks-1, each once; returns when all are done. worker < tr_pool_threads().
 * p may be NULL (runs here). Never allocates. Not reentrant. */
typedef void tr_task_fn(void *ctx, int64_t task, int worker);
void tr_pool_run(struct tr_pool *p, int64_t n_tasks, tr_task_fn *fn, void *ctx);

/* A thread of the library's own: signals are for the program's threads. 0, or errno. */
int tr_thread_start(pthread_t *out, void *(*body)(void *), void *ctx);

/* A condition whose waits end by the monotonic clock: a step of the wall clock neither ends nor prolongs one. */
void tr_cond_init(pthread_cond_t *cond);
/* Waits until the condition is signalled, or tr_clock_us() is until_us: 0 or ETIMEDOUT. */
int tr_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t until_us);

#endif
