/* main.c - bench_forecast: the forecast of the planner beside published results. It tests the planner, so it is built
 * with the benches and installed nowhere.
 *
 *   bench_forecast --cases FILE.csv          a line for each row, then a table of errors by source
 *   bench_forecast --cases FILE.csv --json   an object for each row, the last one with the totals
 */
#include "forecast/cases.h"
#include <stdio.h>

static int usage(const char *what)
{
    fprintf(stderr, "bench_forecast: %s; usage: bench_forecast --cases FILE.csv [--json]\n", what);
    return 2;
}

static enum tr_status print_cases(const char *path, bool as_json)
{
    struct tr_cases c = { 0 };
    struct tr_str out = { 0 };
    enum tr_status st = tr_cases_read(path, &c);
    for (size_t i = 0; st == TR_OK && i < c.n; i++) {
        tr_case_resolve(&c.row[i]);
        tr_case_predict(&c.row[i]);
    }
    if (st == TR_OK)
        tr_cases_print(&c, as_json, &out);
    if (st == TR_OK && !tr_str_ok(&out))
        st = tr_fail(TR_NOMEM, "cases: out of memory");
    if (st == TR_OK && (fputs(out.p, stdout) == EOF || fflush(stdout) != 0))
        st = tr_fail(TR_IO, "cases: cannot write to standard output");
    tr_cases_release(&c);
    tr_str_release(&out);
    return st;
}

int main(int argc, char **argv)
{
    const char *path = NULL;
    bool as_json = false;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0)
            as_json = true;
        else if (strcmp(argv[i], "--cases") == 0 && i + 1 < argc)
            path = argv[++i];
        else
            return usage("unknown argument, or --cases without a file");
    }
    if (!path)
        return usage("no file of cases");
    enum tr_status st = print_cases(path, as_json);
    if (st != TR_OK)
        fprintf(stderr, "bench_forecast: %s\n", tr_error_text());
    return st == TR_OK ? 0 : st == TR_USAGE ? 2 : 1;
}
