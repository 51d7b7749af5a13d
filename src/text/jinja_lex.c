/* jinja_lex.c - splits a template into tokens, with jinja2's white-space rules for trim_blocks and lstrip_blocks.
 *
 * The whole template is split at once, so that the parser can look ahead by index. Data and string tokens hold their
 * final text: white space is trimmed, and escapes are decoded. Raw blocks become data tokens. Comments give no token.
 */
#include "text/jinja_tree.h"

struct lexer {
    struct tr_jinja *t;
    const char *p; /* the template, line ends normalised */
    size_t n, at, n_cap;
    int line;
    char open[TR_JINJA_MAX_TREE]; /* brackets that are not closed yet */
    size_t n_open;
};

static enum tr_status bad(const struct lexer *x, const char *text)
{
    return tr_fail(TR_USAGE, "%s:%d: %s", x->t->what, x->line, text);
}

static enum tr_status push(struct lexer *x, enum tr_jinja_token_kind kind, const char *p, size_t n)
{
    struct tr_jinja *t = x->t;
    if (t->n_tokens == TR_JINJA_MAX_TOKENS)
        return tr_fail(TR_USAGE, "%s:%d: more than %d tokens", t->what, x->line, TR_JINJA_MAX_TOKENS);
    TR_PASS(TR_ROOM(t->tokens, t->n_tokens + 1, &x->n_cap, "a template's tokens"));
    t->tokens[t->n_tokens++] = (struct tr_jinja_token){ .kind = kind, .line = x->line, .p = p, .n = n };
    return TR_OK;
}

static void count_lines(struct lexer *x, const char *p, const char *end)
{
    for (; p < end; p++)
        x->line += *p == '\n';
}

static bool starts(const struct lexer *x, size_t at, const char *text)
{
    size_t n = strlen(text);
    return x->n - at >= n && memcmp(x->p + at, text, n) == 0;
}

static size_t skip_blanks(const struct lexer *x, size_t at)
{
    while (at < x->n && tr_jinja_is_space(tr_jinja_char(x->p + at, x->n - at)))
        at += tr_jinja_char_len(x->p + at, x->n - at);
    return at;
}

/* The number of bytes of [begin, end) that are kept before a tag with this sign. */
static size_t data_end(const struct lexer *x, size_t begin, size_t end, char sign, bool is_var)
{
    const char *p = x->p + begin;
    size_t n = end - begin;
    if (sign == '-') {
        tr_jinja_strip(&p, &n, NULL, false, true);
        return begin + n;
    }
    if (sign == '+' || is_var)
        return end;
    size_t line = end;
    while (line > begin && x->p[line - 1] != '\n')
        line--;
    bool is_line_start = line > begin || begin == 0 || x->p[begin - 1] == '\n';
    return is_line_start && skip_blanks(x, line) >= end ? line : end;
}

/* Moves past the end of a block, comment or raw tag. x->at is at its closing "%}" or "#}"; sign stands before that. */
static void close_tag(struct lexer *x, char sign, bool trims)
{
    size_t from = x->at;
    x->at += 2;
    if (sign == '-')
        x->at = skip_blanks(x, x->at);
    else if (sign != '+' && trims && x->at < x->n && x->p[x->at] == '\n')
        x->at++;
    count_lines(x, x->p + from, x->p + x->at);
}

static char sign_at(const struct lexer *x, size_t at)
{
    return at < x->n && (x->p[at] == '-' || x->p[at] == '+') ? x->p[at] : 0;
}

static enum tr_status lex_comment(struct lexer *x)
{
    size_t i = x->at + 2 + (sign_at(x, x->at + 2) != 0);
    size_t first = i;
    while (i < x->n && !starts(x, i, "#}"))
        i++;
    if (i >= x->n)
        return bad(x, "a comment has no end \"#}\"");
    count_lines(x, x->p + x->at, x->p + i);
    x->at = i;
    close_tag(x, i > first ? sign_at(x, i - 1) : 0, true);
    return TR_OK;
}

/* Whether `{%- word -%}` stands at `at`; gives its closing "%}" and both signs. */
static bool match_tag(const struct lexer *x, size_t at, const char *word, char signs[2], size_t *close)
{
    if (!starts(x, at, "{%"))
        return false;
    signs[0] = sign_at(x, at + 2);
    size_t i = skip_blanks(x, at + 2 + (signs[0] != 0));
    if (!starts(x, i, word))
        return false;
    i = skip_blanks(x, i + strlen(word));
    signs[1] = sign_at(x, i);
    i += signs[1] != 0;
    *close = i;
    return starts(x, i, "%}");
}

/* x->at is at the closing "%}" of `{% raw %}`. */
static enum tr_status lex_raw(struct lexer *x, char sign)
{
    char signs[2];
    size_t close = 0, i;
    close_tag(x, sign, false); /* the line end after a raw tag is kept, as in jinja2 */
    for (i = x->at; i < x->n && !match_tag(x, i, "endraw", signs, &close); i++)
        ;
    if (i >= x->n)
        return bad(x, "a raw block has no endraw");
    size_t end = data_end(x, x->at, i, signs[0], false);
    enum tr_status st = push(x, T_DATA, x->p + x->at, end - x->at);
    count_lines(x, x->p + x->at, x->p + close);
    x->at = close;
    close_tag(x, signs[1], true);
    return st;
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* Decodes the escape after a backslash at *p. Writes at most 4 bytes. */
static enum tr_status read_escape(const struct lexer *x, const char **p, const char *end, char **out)
{
    static const char from[] = "ntrabfv\\'\"", to[] = "\n\t\r\a\b\f\v\\'\"";
    char c = *(*p)++;
    const char *simple = c ? strchr(from, c) : NULL;
    uint32_t code = 0;
    size_t n_hex = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (simple) {
        *(*out)++ = to[simple - from];
        return TR_OK;
    }
    if (c == '\n')
        return TR_OK;
    if (c == 'N')
        return bad(x, "the string escape \\N{...} is not supported; write \\uXXXX");
    if (c >= '0' && c <= '7') {
        code = (uint32_t)(c - '0');
        for (int i = 0; i < 2 && *p < end && **p >= '0' && **p <= '7'; i++)
            code = code * 8 + (uint32_t)(*(*p)++ - '0');
    } else if (n_hex == 0) { /* an unknown escape is kept as it is */
        *(*out)++ = '\\';
        *(*out)++ = c;
        return TR_OK;
    }
    for (size_t i = 0; i < n_hex; i++) {
        int digit = *p < end ? hex_digit(*(*p)++) : -1;
        if (digit < 0 || code > 0x10ffff)
            return bad(x, "a string escape has too few hexadecimal digits or is above U+10FFFF");
        code = code * 16 + (uint32_t)digit;
    }
    if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000) || code == 0)
        return bad(x, "a string escape names no character (NUL, surrogate or above U+10FFFF)");
    *out += tr_jinja_put_char(code, *out);
    return TR_OK;
}

static enum tr_status lex_string(struct lexer *x)
{
    const char *p = x->p + x->at + 1, *end = p;
    while (end < x->p + x->n && *end != x->p[x->at])
        end += *end == '\\' && end + 1 < x->p + x->n ? 2 : 1;
    if (end >= x->p + x->n)
        return bad(x, "a string has no end");
    char *text = tr_jinja_alloc(&x->t->mem, (size_t)(end - p) + 1), *out = text;
    if (!text)
        return tr_fail(TR_NOMEM, "no memory for a template's strings");
    const char *first = p;
    while (p < end) {
        if (*p != '\\') {
            *out++ = *p++;
            continue;
        }
        p++;
        TR_PASS(read_escape(x, &p, end, &out));
    }
    enum tr_status st = push(x, T_STR, text, (size_t)(out - text));
    count_lines(x, first, end);
    x->at = (size_t)(end - x->p) + 1;
    return st;
}

static bool is_digit(const struct lexer *x, size_t at)
{
    return at < x->n && x->p[at] >= '0' && x->p[at] <= '9';
}

static bool is_word(const struct lexer *x, size_t at)
{
    char c = at < x->n ? x->p[at] : 0;
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || is_digit(x, at);
}

static enum tr_status lex_number(struct lexer *x)
{
    size_t i = x->at;
    enum tr_jinja_token_kind kind = T_INT;
    while (is_digit(x, i))
        i++;
    bool is_attr = x->at > 0 && x->p[x->at - 1] == '.'; /* 0.1 in x.0.1 is not a float */
    if (!is_attr && i < x->n && x->p[i] == '.' && is_digit(x, i + 1)) {
        kind = T_FLOAT;
        for (i++; is_digit(x, i);)
            i++;
    }
    if (i < x->n && (x->p[i] == 'e' || x->p[i] == 'E')) {
        size_t exponent = i + 1 + (sign_at(x, i + 1) != 0);
        if (is_digit(x, exponent)) {
            kind = T_FLOAT;
            for (i = exponent; is_digit(x, i);)
                i++;
        }
    }
    if (is_word(x, i) || (kind == T_INT && i - x->at > 1 && x->p[x->at] == '0'))
        return bad(x, "a number is not plain decimal; other forms are not supported");
    enum tr_status st = push(x, kind, x->p + x->at, i - x->at);
    x->at = i;
    return st;
}

static enum tr_status lex_op(struct lexer *x)
{
    static const char *const ops[] = { "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
                                       "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";" };
    static const char openers[] = "([{", closers[] = ")]}";
    for (size_t i = 0; i < TR_COUNT_OF(ops); i++) {
        if (!starts(x, x->at, ops[i]))
            continue;
        char c = ops[i][0];
        const char *closer = strchr(closers, c);
        if (strchr(openers, c)) {
            if (x->n_open == sizeof x->open)
                return bad(x, "brackets are nested too deeply");
            x->open[x->n_open++] = closers[strchr(openers, c) - openers];
        } else if (closer && (x->n_open == 0 || x->open[--x->n_open] != c)) {
            return bad(x, "a closing bracket has no matching opening bracket");
        }
        enum tr_status st = push(x, T_OP, x->p + x->at, strlen(ops[i]));
        if (st == TR_OK)
            memcpy(x->t->tokens[x->t->n_tokens - 1].op, ops[i], strlen(ops[i]));
        x->at += strlen(ops[i]);
        return st;
    }
    char text[32], shown[128];
    size_t n = tr_jinja_char_len(x->p + x->at, x->n - x->at);
    memcpy(text, x->p + x->at, n);
    text[n] = 0;
    return tr_fail(TR_USAGE, "%s:%d: unexpected \"%s\"", x->t->what, x->line, tr_escape(text, shown, sizeof shown));
}

/* Takes the end of a tag at x->at, when there is one: "%}", "-%}", "+%}" or "}}", "-}}". */
static bool at_end(const struct lexer *x, bool is_var, char *sign)
{
    const char *end = is_var ? "}}" : "%}";
    *sign = sign_at(x, x->at);
    if (x->n_open > 0)
        return false;
    if (*sign && !(is_var && *sign == '+') && starts(x, x->at + 1, end))
        return true;
    *sign = 0;
    return starts(x, x->at, end);
}

static enum tr_status lex_tag(struct lexer *x, bool is_var)
{
    char sign;
    enum tr_status st = push(x, is_var ? T_VAR_BEGIN : T_BLOCK_BEGIN, "", 0);
    x->n_open = 0;
    x->at += sign_at(x, x->at + 2) ? 3 : 2;
    while (st == TR_OK) {
        size_t at = skip_blanks(x, x->at);
        count_lines(x, x->p + x->at, x->p + at);
        x->at = at;
        if (x->at >= x->n)
            return bad(x, is_var ? "a tag has no end \"}}\"" : "a tag has no end \"%}\"");
        if (at_end(x, is_var, &sign)) {
            st = push(x, is_var ? T_VAR_END : T_BLOCK_END, "", 0);
            x->at += sign != 0;
            close_tag(x, sign, !is_var);
            return st;
        }
        char c = x->p[x->at];
        if (c == '\'' || c == '"') {
            st = lex_string(x);
        } else if (is_digit(x, x->at)) {
            st = lex_number(x);
        } else if (is_word(x, x->at)) {
            size_t i = x->at;
            while (is_word(x, i))
                i++;
            st = push(x, T_NAME, x->p + x->at, i - x->at);
            x->at = i;
        } else {
            st = lex_op(x);
        }
    }
    return st;
}

/* Every line end becomes \n; one at the very end of the template is dropped. */
static size_t normalise(char *text, size_t n)
{
    size_t n_out = 0;
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '\r' && i + 1 < n && text[i + 1] == '\n')
            continue;
        text[n_out++] = text[i] == '\r' ? '\n' : text[i];
    }
    return n_out > 0 && text[n_out - 1] == '\n' ? n_out - 1 : n_out;
}

enum tr_status tr_jinja_lex(struct tr_jinja *t, char *text, size_t n)
{
    struct lexer x = { .t = t, .p = text, .n = normalise(text, n), .line = 1 };
    enum tr_status st = TR_OK;
    while (st == TR_OK && x.at < x.n) {
        size_t tag = x.at, close = 0;
        char signs[2] = { 0 };
        while (tag < x.n && !(x.p[tag] == '{' && tag + 1 < x.n && strchr("{%#", x.p[tag + 1])))
            tag++;
        bool is_tag = tag < x.n, is_var = is_tag && x.p[tag + 1] == '{';
        size_t end = is_tag ? data_end(&x, x.at, tag, sign_at(&x, tag + 2), is_var) : x.n;
        if (end > x.at)
            st = push(&x, T_DATA, x.p + x.at, end - x.at);
        count_lines(&x, x.p + x.at, x.p + tag);
        x.at = tag;
        if (st != TR_OK || !is_tag)
            break;
        if (x.p[tag + 1] == '#') {
            st = lex_comment(&x);
        } else if (match_tag(&x, tag, "raw", signs, &close) && signs[1] != '+') {
            x.at = close;
            st = lex_raw(&x, signs[1]);
        } else {
            st = lex_tag(&x, is_var);
        }
    }
    return st == TR_OK ? push(&x, T_EOF, "", 0) : st;
}
