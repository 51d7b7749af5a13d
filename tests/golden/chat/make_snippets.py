"""Writes snippets.json: small templates and what jinja2, set up as transformers does, renders for them.

Run: python make_snippets.py   (needs transformers and jinja2). "error": true means that jinja2 raises; we must refuse.
"""
import json
import os

from transformers.utils.chat_template_utils import _compile_jinja_template

HERE = os.path.dirname(os.path.abspath(__file__))
VARS = {
    "n": 3, "f": 2.5, "t": True, "none": None, "s": "Hello World", "u": "héllo wörld ✓ 日本", "empty": "", "blank": "  x \n",
    "list": [3, 1, 2], "words": ["b", "A", "c"], "nested": [[1, 2], [3, 4]], "d": {"a": 1, "b": [True, None, "x'y\"z"], "items": 5},
    "msgs": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}, {"role": "user", "content": "bye"}],
    "html": "<a href='x'>&</a>", "esc": "q\"b\\n\n\t\u0001\u007fé😀", "big": 1e22, "small": 1e-7, "third": 1 / 3, "neg": -7,
}
SNIPPETS = r"""
{{ n }} {{ f }} {{ t }} {{ none }} {{ s }} {{ list }} {{ d }} {{ nested }} {{ missing }}|
{{ big }} {{ small }} {{ third }} {{ 1.0 }} {{ 1e16 }} {{ 123456789012345680.0 }} {{ 0.0001 }} {{ 0.00001 }} {{ 100.0 }} {{ -0.0 }}
{{ n + 1 }} {{ n - 5 }} {{ n * 2 }} {{ n / 2 }} {{ neg // 2 }} {{ neg % 3 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ -n }} {{ +n }} {{ 7.5 // 2 }} {{ -7.5 % 2 }}
{{ "a" + "b" }} {{ "ab" * 3 }} {{ [1] + [2] }} {{ (1,) + (2, 3) }} {{ [0] * 3 }} {{ 3 * "x" }} {{ () }} {{ (1,) }} {{ 1, 2 }}
{{ n ~ s ~ none ~ t ~ missing ~ 1.5 }}
{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ n == 3.0 }} {{ t == 1 }} {{ "a" < "b" }} {{ [1, 2] < [1, 3] }} {{ n != 3 }} {{ n >= 3 }} {{ none == missing }}
{{ "ell" in s }} {{ 3 in list }} {{ 9 not in list }} {{ "a" in d }} {{ "z" in d }} {{ 1 in missing }}
{{ t and n }} {{ none or "x" }} {{ not t }} {{ none and missing.foo }} {{ t or missing.foo }} {{ not none and n }}
{{ "yes" if t else "no" }} {{ "yes" if none }}| {{ "a" if none else "b" if none else "c" }}
{{ list[0] }} {{ list[-1] }} {{ list[10] }}| {{ s[0] }} {{ s[-1] }} {{ u[1] }} {{ d["a"] }} {{ d.a }} {{ d["items"] }} {{ d.zzz }}| {{ list.0 }}
{{ list[1:] }} {{ list[:-1] }} {{ list[::-1] }} {{ list[::2] }} {{ s[1:5] }} {{ s[::-1] }} {{ u[6:] }} {{ s[:100] }} {{ list[5:] }} {{ s[-3:-1] }} {{ u[::-2] }} {{ list[-100:2] }} {{ list[2:0:-1] }}
{{ s.upper() }} {{ s.lower() }} {{ s.title() }} {{ s.strip("Hd") }} {{ blank.strip() }}| {{ blank.lstrip() }}| {{ blank.rstrip() }}| {{ s.split() }} {{ s.split("o") }} {{ s.split("o", 1) }} {{ s.rsplit("o", 1) }} {{ "a,b,,c".split(",") }}
{{ s.startswith("He") }} {{ s.endswith(("x", "ld")) }} {{ s.replace("o", "0") }} {{ s.replace("o", "0", 1) }} {{ s.find("World") }} {{ s.find("zz") }} {{ u.find("✓") }} {{ s.rfind("o") }} {{ s.count("l") }} {{ "ab".replace("", "-") }}
{{ ",".join(words) }} {{ "x {} {} y".format(1, "z") }} {{ "{0}-{1}-{0}".format(1, 2) }} {{ "{a}".format(a=5) }} {{ "{{}}".format() }} {{ "12".isdigit() }} {{ "".isdigit() }} {{ "a1".isalnum() }}
{{ "%s is %d and %.2f %r %%" % ("a", 5, 1.255, "q") }} {{ "%s" | format("x") }} {{ "%05d" % 42 }} {{ "%s" % "solo" }}
{{ "one\ntwo\r\nthree\n".splitlines() }} {{ "abc".removeprefix("a") }} {{ "abc".removesuffix("c") }} {{ " \t".isspace() }} {{ "AB".isupper() }} {{ "it's a dog".title() }} {{ "hELLO".capitalize() }}
{{ d.get("a") }} {{ d.get("q") }} {{ d.get("q", 7) }} {% for k in d.keys() %}{{ k }},{% endfor %} {% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %} {{ d.values() | list }} {{ d | length }} {{ d | list }}
{{ s | length }} {{ u | length }} {{ list | count }} {{ missing | length }} {{ "" | length }}
{{ s | upper }} {{ s | lower }} {{ "hello wORLD-foo (bar) it's" | title }} {{ "hELLO w" | capitalize }} {{ "日本 é" | length }} {{ blank | trim }}| {{ "xxaxx" | trim("x") }}
{{ words | join }} {{ words | join(", ") }} {{ msgs | join("/", attribute="role") }} {{ [1, none, 2.0] | join("-") }} {{ "abc" | join("-") }}
{{ missing | default("dd") }} {{ none | default("dd") }} {{ none | default("dd", true) }} {{ "" | d("e", boolean=True) }} {{ missing | default }}|
{{ list | first }} {{ list | last }} {{ "xyz" | first }} {{ "xyz" | last }} {{ [] | first }}| {{ list | sort }} {{ words | sort }} {{ words | sort(case_sensitive=true) }} {{ list | sort(reverse=true) }} {{ msgs | sort(attribute="content") | map(attribute="content") | list }}
{{ list | reverse | list }} {{ "abc" | reverse }} {{ [1, 1, 2, 1] | unique | list }} {{ ["a", "A", "b"] | unique | list }} {{ list | min }} {{ list | max }} {{ list | sum }} {{ msgs | map(attribute="content") | map("upper") | join(" ") }}
{{ msgs | selectattr("role", "equalto", "user") | list | length }} {{ msgs | rejectattr("role", "eq", "user") | map(attribute="content") | list }} {{ [0, 1, none, "a"] | select | list }} {{ [1, 2, 3, 4] | select("odd") | list }} {{ [1, 2, 3] | reject("gt", 1) | list }} {{ msgs | selectattr("role", "in", ["user"]) | map(attribute="content") | first }} {{ msgs | selectattr("tool") | list }} {{ msgs | selectattr("role", "defined") | list | count }}
{{ "42" | int }} {{ "4.7" | int }} {{ "x" | int }} {{ "x" | int(9) }} {{ 3.9 | int }} {{ "2.5" | float }} {{ "x" | float(1.5) }} {{ 42.55 | round }} {{ 42.55 | round(1) }} {{ 2.5 | round }} {{ 42.55 | round(1, "floor") }} {{ 42.1 | round(0, "ceil") }} {{ -5 | abs }} {{ neg | abs }} {{ 3 | round }} {{ t | int }} {{ 5 | string + "x" }}
{{ d | tojson }} {{ esc | tojson }} {{ esc | tojson(ensure_ascii=true) }} {{ html | tojson }} {{ list | tojson(indent=2) }} {{ d | tojson(indent=4) }} {{ {} | tojson(indent=2) }} {{ [] | tojson }} {{ 1.0 | tojson }} {{ none | tojson }} {{ (1, 2) | tojson }} {{ d | tojson(separators=(",", ":")) }} {{ {"b": 1, "a": {"d": 1, "c": 2}} | tojson(sort_keys=true) }} {{ {1: 2, true: 3} | tojson }}
{{ html | e }} {{ html | escape }} {{ html | safe }} {{ html | safe ~ "<" }} {{ "a\nb\n\nc" | indent }}| {{ "a\nb\n\nc" | indent(2, true) }}| {{ "a\n\nb" | indent(width=1, blank=true) }}| {{ "a\nb" | indent("> ") }} {{ "x y_z, w" | wordcount }}
{{ {"b": 1, "a": 2} | dictsort }} {{ {"b": 1, "a": 2} | dictsort(by="value") }} {{ {"b": 1, "a": 2} | dictsort(reverse=true) }} {% for k, v in d | items %}{{ k }},{% endfor %} {{ [1, 2, 3, 4, 5] | batch(2) | list }} {{ [1, 2, 3] | batch(2, 0) | list }} {{ s | replace("o", "0") }} {{ s | list | length }}
{{ n is defined }} {{ missing is defined }} {{ missing is undefined }} {{ none is none }} {{ s is string }} {{ d is mapping }} {{ list is iterable }} {{ s is sequence }} {{ d is sequence }} {{ n is number }} {{ t is number }} {{ t is boolean }} {{ t is true }} {{ t is false }} {{ n is integer }} {{ f is float }} {{ n is odd }} {{ n is even }} {{ 9 is divisibleby 3 }} {{ n is eq 3 }} {{ n is equalto(3) }} {{ n is in list }} {{ n is not none }} {{ "a" is lower }} {{ "A" is upper }} {{ none is sameas none }} {{ n is gt 2 }} {{ n is lessthan 2 }} {{ n is string or t is boolean }} {{ msgs is callable }}
{% if n > 5 %}a{% elif n == 3 %}b{% else %}c{% endif %}{% if missing %}x{% endif %}{% if none is none and not missing %}y{% endif %}
{% for x in list %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.depth }}{{ loop.cycle("a", "b") }} {% endfor %}
{% for x in [] %}a{% else %}none{% endfor %}{% for x in list if x > 1 %}{{ x }}/{{ loop.length }}{% else %}z{% endfor %}{% for x in list if x > 9 %}{{ x }}{% else %}z{% endfor %}
{% for a, b in nested %}{{ a }}-{{ b }};{% endfor %}{% for (a, b) in nested %}{{ a + b }}{% endfor %}{% for c in "héy" %}[{{ c }}]{% endfor %}{% for k in d %}{{ k }}{% endfor %}
{% for x in list %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% if x == 2 %}{% break %}{% endif %}{% endfor %}{% for x in range(10) %}{% if loop.index > 3 %}{% break %}{% endif %}{{ x }}{% endfor %}
{% set x = 1 %}{% for i in list %}{{ x }}{% set x = i %}{{ x }}{% endfor %}{{ x }}{% if t %}{% set x = 9 %}{% endif %}{{ x }}
{% set ns = namespace(a=1, b="x") %}{% for i in list %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }}{{ ns.b }}{{ ns.zzz }}|{% set ns.c = [1] %}{{ ns.c }}
{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set (c, d2) = (3, 4) %}{{ c }}{{ d2 }}{% set e = 1, 2 %}{{ e }}
{% set x %}block {{ n }}{% set inner = 5 %}{% endset %}[{{ x }}]{{ inner }}{% set y | upper | trim %} up {% endset %}[{{ y }}]
{% macro m(a, b=2, c=a) %}<{{ a }},{{ b }},{{ c }}>{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(1, c=9) }}{{ m(a=4, b=5) }}{{ m() }}{{ m(1) | length }}
{% macro rec(x) %}{% if x > 0 %}{{ x }}{{ rec(x - 1) }}{% endif %}{% endmacro %}{{ rec(4) }}{% macro outer() %}{{ glob }}{% endmacro %}{% set glob = "late" %}{{ outer() }}
{% macro box(t) %}[{{ t }}:{{ caller() }}]{% endmacro %}{% call box("x") %}body {{ n }}{% endcall %}{% macro each(l) %}{% for i in l %}{{ caller(i) }}{% endfor %}{% endmacro %}{% call(v) each(list) %}<{{ v }}>{% endcall %}
{% filter upper %}abc {{ s }}{% endfilter %}{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a }}|{% raw %}{{ x }} {% if %}{% endraw %}|
{# comment #}a{#- c -#} b  {#+ x +#}  c
{% generation %}g {{ n }}{% set q = 1 %}{% endgeneration %}{{ q }}|
   {% if t %}   x   {% endif %}   y   {%- if t -%}   z   {%- endif +%}   w
{{ "a\tb\\n\x41\u00e9\q\'" }} {{ 'it''s' }} {{ "con" "cat" }} {{ 'd"q' }} {{ ['a\'b', "a'b", 'a"b\'c', "\n\t\x01\x7f\xa0\u200b é"] }}
{{ range(3) | list }} {{ range(1, 7, 2) | list }} {{ range(5, 0, -2) | list }} {{ range(3)[1] }} {{ range(3) | length }} {{ 2 in range(3) }} {{ dict(a=1, b=2) }} {{ dict({"x": 1}, y=2) }} {{ dict([("a", 1)]) }} {{ {"a": {"b": 1}}.a.b }} {{ {1: "x"}[1] }} {{ {"a": 1, "a": 2} }}
{{ strftime_now("%d %b %Y") | length }} {{ strftime_now("%Y") | int > 2000 }}
{{ msgs[0].role }} {{ msgs[0]["content"] }} {{ msgs[-1].content[0] }} {{ msgs[1:][0].role }} {{ (msgs | last).content }} {{ msgs[0].content is string }} {{ msgs | map(attribute="role") | unique | list }} {{ msgs | map(attribute="x", default="?") | join }} {{ msgs[0].items() | list }} {{ msgs[0] == {"content": "hi", "role": "user"} }}
{{ 5 is not odd }}{{ (1 if t else 2) + 3 }}{{ -n ** 2 }}{{ 2 * 3 + 4 * 5 }}{{ 10 - 2 - 3 }}{{ "x" ~ 2 * 3 }}{{ "a" ~ 1 }}
{{ not 1 == 2 }}{{ 1 in [1] and 2 not in [1] }}{{ (1, 2) == (1, 2) }}{{ [1, 2] == (1, 2) }}{{ "x" == none }}{{ {} == {} }}{{ missing == missing2 }}{{ missing != none }}
{{ (none | string) + "x" }}{{ [missing] }}{{ missing ~ "" }}{{ [1.0, "a", none, true, {"k": (1,)}] | string }}{{ loop is defined }}{{ s | string is string }}
{% for x in list -%}  {{ x }}  {%- if not loop.last %}, {% endif %}{% endfor %}
{% for m in msgs %}{% for c in m.content %}{{ loop.index }}{{ c }}{% endfor %}{{ loop.index }}{% endfor %}{% for x in missing %}{% endfor %}
{% if s.split("</think>")[-1].lstrip("\n") == s %}same{% endif %}{% set parts = "<think>a</think>b".split("</think>") %}{{ parts[0].split("<think>")[-1] }}{{ parts | length }}
{{ msgs | selectattr("role", "equalto", "user") | length }}
{{ none | selectattr("x") | list }}{{ none | map("upper") | list }}{{ 0 | reject("odd") | list }}{{ dict(*[{"a": 1}]) }}{% macro sp(a, b, c=3) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ sp(*[1, 2]) }}{{ sp(1, *[2], c=5) }}
{{ missing.foo }}
{{ missing["foo"] }}
{{ missing + 1 }}
{{ missing < 1 }}
{{ missing() }}
{{ missing | int }}
{{ list.append(4) }}
{{ d.update({"x": 1}) }}
{{ d.pop("a") }}
{{ raise_exception("boom") }}
{{ 1 + "a" }}
{{ "a" + 1 }}
{{ [1] + (1,) }}
{{ 1 / 0 }}
{{ 1 // 0 }}
{{ 1 < "a" }}
{{ none[0] }}|
{{ none.x }}|
{{ n.x }}|{{ n[0] }}|
{{ none + "x" }}
{{ none | length }}
{{ s | nofilter }}
{{ s is notest }}
{% if none %}{{ s | nofilter }}{{ s is notest }}{% elif t %}ok{% else %}{{ s | nofilter(1) | upper }}{% endif %}
{% if t %}{{ s | nofilter }}{% endif %}
{% if s is notest %}x{% endif %}
{{ ("<b>" | safe) + html + "'" }} {{ html + ("<i>" | safe) }} {{ (html | e) + (html | safe) }} {{ "<" + html }} {{ ("" | safe) + "<" }} {{ (("a" | safe) + "<") | e }}
{{ nofunc(1) }}
{% unknown %}
{% if %}{% endif %}
{% for x in list %}
{% endfor %}
{{ x
{% set 1 = 2 %}
{{ "unclosed }}
{{ (1, 2 }}
{% break %}
{{ 1 in 5 }}
{{ 1 in s }}
{{ n | join }}
{{ range(1000000) }}
{{ s | trim(1, 2) }}
{{ s | trim(bad=1) }}
{% set ns = namespace() %}{% set ns._x = 1 %}
{% set nd.x = 1 %}
{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}
{% macro m(a) %}{% endmacro %}{{ m(b=2) }}
{{ {}[[]] }}|
{{ [1, "a"] | sort }}
{% for a, b in list %}{% endfor %}
{{ "x" * -1 }}|{{ [1] * 0 }}
{{ {"a": 1}.a.real_missing }}|{{ "abc".nothing }}|
{{ msgs | map(attribute="content") | list | tojson }}{{ msgs[0] | tojson }}
{{ "😀a"[0] }}{{ "😀a"[1] }}{{ "😀" | length }}{{ "😀é" | tojson(ensure_ascii=True) }}
{{ s if s is defined and s is not none else "" }}{{ '' if (none is none) else 'x' }}{{ loop_messages | default([]) | length }}
""".strip("\n").split("\n")
# Templates with line breaks, where whitespace control shows.
SNIPPETS += [
    "a\n  {% if t %}\n  b\n  {% endif %}\nc\n",
    "a\n  {%- if t %}\n  b\n  {%- endif %}\nc\n\n",
    "a\n  {%+ if t %}\n  b\n  {%+ endif %}\nc",
    "{% for x in list %}\n{{ x }}\n{% endfor %}\nend",
    "{%- for x in list -%}\n  {{- x -}}  \n{%- endfor -%}\n  end  \n",
    "x\n  {# note #}\n  y {# z #}\n{#- a -#}\n w",
    "\n\n{% set a = 1 %}\n\n{{ a }}\n\n",
    "\r\na\r{% if t %}\r\nb{% endif %}\r\n",
    "a {% raw %}\n  {{ x }}\n  {% endraw %}\nb\n  {% raw -%}  \n y {%- endraw %}  z",
    "\t{% if t %}\tx{% endif %}\t\n  text {% if t %}\n  y\n  text2 {% endif %}\n",
    "{{ n }}\n{{ n }}\n  {{ n }}\n",
    "{%- macro m(x) -%}\n  [{{ x }}]\n{%- endmacro -%}\n{{ m(1) }}\n{{- m(2) }}",
    "{% set x %}\n  line\n{% endset %}\n[{{ x }}]",
    "{{-\n  n\n-}}\n  x\n{{ 'a'\n  ~ 'b' }}",
    "  {% generation %}\n  g\n  {% endgeneration %}\n h",
    "{{ {'a': {'b': {}}} }}{{ {'a': 1}['a'] }}{{ {}}}",
    "{% if t %}\n\n\nx\n\n{% endif %}\n\n",
    "{%if t%}x{%endif%}{{n}}{%-set a=1-%}{{a}}",
    "{% for x in list %}\n    {%- if loop.first %}F{% endif %}\n    {{- x }}\n{% endfor %}",
    "",
    "\n",
    "plain { text } % # {",
]


def main():
    rows = []
    for text in SNIPPETS:
        row = {"template": text}
        try:
            row["out"] = _compile_jinja_template(text).render(**VARS)
        except Exception as error:
            row["error"] = f"{type(error).__name__}: {error}"
        rows.append(row)
    with open(os.path.join(HERE, "snippets.json"), "w", encoding="utf-8") as f:
        json.dump({"vars": VARS, "rows": rows}, f, ensure_ascii=True, indent=1)
        f.write("\n")
    print(len(rows), "snippets,", sum("error" in r for r in rows), "of them errors")


if __name__ == "__main__":
    main()
