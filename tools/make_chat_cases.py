#!/usr/bin/env python3
"""Writes tests/golden/chat_cases.jsonl: templates, the names they are given, and what transformers makes of them.

`families` holds conversation templates in the forms that the supported families use, written for this test;
`small` holds one-line templates for single features of the language, and some that must fail (result null).
Needs the package `transformers`:  python tools/make_chat_cases.py
Templates that models come with (any folder of .jinja files; llama.cpp keeps seventy in models/templates), with harder
conversations:  python tools/make_chat_cases.py --templates DIR -o FILE
    KVSCOPE_CHAT_CASES=FILE build/ci/tests/core_tests --gtest_filter='ChatTemplate.Gives*'
"""

import argparse
import json
import pathlib

from transformers.utils.chat_template_utils import _compile_jinja_template

FILE = pathlib.Path(__file__).resolve().parent.parent / "tests/golden/chat_cases.jsonl"
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}

CHATML = """{% for message in messages %}
{% if loop.first and message['role'] != 'system' %}
{{ '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' -}}
{% endif %}
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' -}}
{% endfor %}
{% if add_generation_prompt %}
{{ '<|im_start|>assistant\\n' -}}
{% endif %}"""

INST = """{{ bos_token }}
{%- if messages and messages[0]['role'] == 'system' %}
  {%- set system = '<<SYS>>\\n' + messages[0]['content'] + '\\n<</SYS>>\\n\\n' %}
  {%- set rest = messages[1:] %}
{%- else %}
  {%- set system = '' %}
  {%- set rest = messages %}
{%- endif %}
{%- for message in rest %}
  {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
    {{- raise_exception('Roles must take turns: user, assistant, user') }}
  {%- endif %}
  {%- if loop.index0 == 0 %}
    {%- set content = system + message['content'] %}
  {%- else %}
    {%- set content = message['content'] %}
  {%- endif %}
  {%- if message['role'] == 'user' %}
    {{- '[INST] ' + content | trim + ' [/INST]' }}
  {%- elif message['role'] == 'assistant' %}
    {{- ' ' + content | trim + ' ' + eos_token }}
  {%- endif %}
{%- endfor %}"""

HEADERS = """{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}
{%- if messages and messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}
    {{- "Environment: ipython\\n" }}
{%- endif %}
{{- "Today Date: " + date_string + "\\n\\n" }}
{%- if tools is not none %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("One call at a time") }}
        {%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '{"name": "' + call.name + '", "parameters": ' }}{{- call.arguments | tojson }}{{- "}<|eot_id|>" }}
    {%- else %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" + message.content + "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

THINKING = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- "# Tools\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- elif messages and messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(multi_step=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step and message.role == "user" and message.content is string and not(message.content.startswith('<r>') and message.content.endswith('</r>')) %}
        {%- set ns.multi_step = false %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last and (loop.last or reasoning) %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {%- if message.tool_calls %}
            {%- for call in message.tool_calls %}
                {%- if (loop.first and content) or (not loop.first) %}{{- '\\n' }}{%- endif %}
                {%- if call.function %}{%- set call = call.function %}{%- endif %}
                {{- '<tool_call>\\n{"name": "' ~ call.name ~ '", "arguments": ' }}
                {%- if call.arguments is string %}{{- call.arguments }}{%- else %}{{- call.arguments | tojson }}{%- endif %}
                {{- '}\\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + content + '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}"""

USER_ASSISTANT = """{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}{{ 'User: ' + message['content'] + '\n\n' }}{% elif message['role'] == 'assistant' %}{{ 'Assistant: ' + message['content'] + eos_token }}{% elif message['role'] == 'system' %}{{ message['content'] + '\n\n' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"""

OBSERVED = """[gMASK]<sop>
{%- macro visible(content) -%}
    {%- if content is string -%}
        {{- content }}
    {%- elif content is iterable and content is not mapping -%}
        {%- for item in content -%}
            {%- if item is mapping and item.type == 'text' -%}{{- item.text }}{%- elif item is string -%}{{- item }}{%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{- content }}
    {%- endif -%}
{%- endmacro -%}
{%- set ns = namespace(last_user=-1) %}
{%- for m in messages %}{%- if m.role == 'user' %}{% set ns.last_user = loop.index0 -%}{%- endif %}{%- endfor %}
{% for m in messages %}
{%- if m.role == 'user' -%}<|user|>
{{ visible(m.content) }}
{{- '/nothink' if (enable_thinking is defined and not enable_thinking and not visible(m.content).endswith("/nothink")) else '' -}}
{%- elif m.role == 'assistant' -%}
<|assistant|>
{%- set content = visible(m.content) %}
{%- if loop.index0 > ns.last_user %}{{ '\\n<think></think>' }}{%- endif -%}
{%- if content.strip() -%}{{ '\\n' + content.strip() }}{%- endif -%}
{%- elif m.role == 'system' -%}<|system|>
{{ visible(m.content) }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|assistant|>{%- endif -%}"""

CHATS = [
    [{"role": "user", "content": "Hello!"}],
    [{"role": "system", "content": "Be brief. "}, {"role": "user", "content": " What's 2+2? <tag> \"q\"\n"}],
    [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c ü 世界"}],
    [{"role": "system", "content": "S"}, {"role": "user", "content": "a"},
     {"role": "assistant", "content": "<think>\nhm\n</think>\n\nb"}, {"role": "user", "content": "c"},
     {"role": "assistant", "content": "d"}],
    [{"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}],
    [{"role": "user", "content": [{"type": "text", "text": "parts"}, {"type": "image"}]}],
    [],
]
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "Weather & \"more\"", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "empty": {}, "none": []}}}]
CALLS = [{"role": "user", "content": "w?"},
         {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {
             "name": "weather", "arguments": {"city": "Köln", "n": 3, "f": 1.5, "l": [1, None, True]}}}]},
         {"role": "tool", "content": "22"}, {"role": "tool", "content": "23"}]

ITEMS = {"n": 3, "f": 2.5, "big": 1e20, "small": 0.00001, "s": " aXb\tc ", "t": "Ünï 😀 x", "l": [3, 1, 2], "e": [], "o": None,
         "m": {"k": "v", "items": 5, "z": [1, {"a": "b"}]}, "y": True, "w": ["b", "A", "c", "a"],
         "r": [{"n": "x", "v": 2}, {"n": "y", "v": 1, "on": True}, {"n": "z"}], "q": "it's \"q\"\\\n\x01", "html": "<a&'\">"}
SMALL = r"""
{{ 1 + 2 * 3 - 4 / 2 }}|{{ 7 // 2 }}|{{ -7 // 2 }}|{{ -7 % 3 }}|{{ 2 ** 10 }}|{{ 1 / 4 }}|{{ 7 % -3 }}|{{ 7.5 // 2 }}
{{ 1 ~ 'a' ~ none ~ true }}|{{ 'a' * 3 }}|{{ [1] + [2] }}|{{ 'a' 'b' }}
{{ n }}{{ f }}{{ big }}{{ small }}{{ y }}{{ o }}{{ l }}{{ m }}{{ q }}{{ [q, o, y, 1.0] }}
{{ missing }}|{{ m.missing }}|{{ missing is defined }}|{{ m.k is defined }}|{{ missing|length }}
{{ missing.x }}
{{ m.missing.x }}
{{ missing() }}
{{ missing + 1 }}
{{ 'a' + 1 }}
{{ 1 / 0 }}
{{ m['items'] }}|{{ m.k }}|{{ m.get('k') }}|{{ m.get('x') }}|{{ m.get('x', 1) }}|{{ m.keys()|list }}|{{ m.values()|list }}
{% for k, v in m.items() %}{{ k }}={{ v }};{% endfor %}
{% for k, v in m|items %}{{ loop.index }}{{ k }}{% endfor %}|{% for k, v in m|dictsort %}{{ k }}{% endfor %}
{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{% endfor %}
{% for x in l %}{{ loop.previtem }}-{{ x }}-{{ loop.nextitem }}{{ loop.cycle('a', 'b') }}{% endfor %}
{% for x in l if x > 1 %}{{ loop.index }}:{{ x }}{% else %}none{% endfor %}|{% for x in e %}x{% else %}none{% endfor %}
{% for x in range(5) %}{% if x == 1 %}{% continue %}{% endif %}{% if x == 3 %}{% break %}{% endif %}{{ x }}{% endfor %}
{% for x in range(2, 10, 3) %}{{ x }}{% endfor %}|{{ range(3)|list }}|{{ range(5, 0, -2)|list }}
{% set x = 1 %}{% for i in l %}{% set x = i %}{% endfor %}{{ x }}
{% set ns = namespace(x=1, y='a') %}{% for i in l %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}{{ ns.y }}
{% set a, b = 1, 2 %}{{ a }}{{ b }}|{% set c %}in {{ a }}{% endset %}{{ c }}|{% set d | upper %}abc{% endset %}{{ d }}
{% if y %}{% set v = 5 %}{% endif %}{{ v }}|{% if e %}a{% elif n == 3 %}b{% else %}c{% endif %}
{% macro f(a, b='B', c=none) %}<{{ a }}{{ b }}{{ c }}>{% endmacro %}{{ f(1) }}{{ f(1, 2) }}{{ f(1, c=3) }}{{ f() }}
{% macro g(n) %}{{ n }}{% if n > 0 %}{{ g(n - 1) }}{% endif %}{% endmacro %}{{ g(3) }}
{{ 'yes' if n > 2 else 'no' }}|{{ 'yes' if n > 5 }}|{{ n if n }}|{{ (1, 2) }}
{{ not n }}|{{ n and 0 }}|{{ o or 'x' }}|{{ 1 < 2 < 3 }}|{{ 3 > 2 > 2 }}|{{ n == 3.0 }}|{{ 'a' != 'b' }}|{{ 'a' < 'b' }}
{{ 'a' in 'abc' }}|{{ 1 in l }}|{{ 'k' in m }}|{{ 9 not in l }}|{{ not 1 in l }}
{{ 'a' < 1 }}
{{ l[0] }}{{ l[-1] }}{{ l[9] }}|{{ l[1:] }}{{ l[:-1] }}{{ l[::-1] }}{{ l[::2] }}{{ l[5:] }}{{ l[-2:9] }}{{ l[2:0:-1] }}
{{ t[0] }}{{ t[4] }}{{ t[-1] }}{{ t[1:5] }}{{ t[::-1] }}{{ t|length }}{{ t|upper }}{{ t|lower }}
{{ s|trim }}.{{ s.strip() }}.{{ s.lstrip() }}.{{ s.rstrip() }}.{{ 'xxaxx'.strip('x') }}.{{ '--a'.lstrip('-') }}
{{ 'a,b,,c'.split(',') }}{{ ' a  b c '.split() }}{{ 'a b c'.split(' ', 1) }}{{ 'a b c'.rsplit(' ', 1) }}{{ ' a  b c '.split(none, 1) }}{{ ' a b  c '.rsplit(none, 1) }}
{{ 'abc'.startswith('a') }}{{ 'abc'.endswith(('x', 'c')) }}{{ 'abc'.find('c') }}{{ 'abc'.find('x') }}{{ 'aXa'.replace('a', 'b') }}{{ 'aaa'.replace('a', 'b', 2) }}{{ 'ab'.count('a') }}
{{ 'hello wORLD'.title() }}|{{ 'hELLO w'.capitalize() }}|{{ 'Ab'.upper() }}{{ 'Ab'.lower() }}{{ ', '.join(w) }}{{ 'a\nb\r\nc'.splitlines() }}
{{ 'ab'.isdigit() }}{{ '12'.isdigit() }}{{ 'abc'.removeprefix('a') }}{{ 'abc'.removesuffix('c') }}
{{ l|first }}{{ l|last }}{{ l|length }}{{ l|join('-') }}{{ l|sort }}{{ l|sort(reverse=true) }}{{ l|reverse|list }}{{ l|sum }}{{ l|min }}{{ l|max }}
{{ w|sort }}{{ w|sort(case_sensitive=true) }}{{ [1, 2, 1]|unique|list }}{{ w|map('upper')|join }}{{ r|map(attribute='n')|list }}{{ r|map(attribute='v', default=0)|list }}
{{ r|selectattr('on')|map(attribute='n')|list }}{{ r|selectattr('v', 'equalto', 2)|list|length }}{{ r|rejectattr('on', 'defined')|list|length }}{{ l|select('>', 1)|list }}
{{ l|select('odd')|list }}{{ l|reject('even')|list }}{{ r|sort(attribute='n', reverse=true)|map(attribute='n')|list }}{{ r|join('+', attribute='n') }}
{{ missing|default('d') }}{{ o|default('d') }}{{ o|default('d', true) }}{{ missing|d }}{{ ''|default('e', boolean=true) }}
{{ m|tojson }}|{{ m|tojson(indent=2) }}|{{ t|tojson }}|{{ t|tojson(ensure_ascii=true) }}|{{ q|tojson }}|{{ [1.0, 2.5, big, o, y]|tojson }}|{{ {}|tojson(indent=2) }}|{{ [[]]|tojson(indent=1) }}
{{ {'b': 1, 'a': 2}|tojson(sort_keys=true) }}{{ {'b': 1, 'a': [1, 2]}|tojson(separators=(',', ':')) }}
{{ '5'|int + 1 }}{{ 'x'|int }}{{ 'x'|int(7) }}{{ '2.5'|float }}{{ 3.9|int }}{{ 5|string + 'a' }}{{ 'abc'|list }}{{ n|float }}{{ 2.567|round(2) }}{{ -3|abs }}
{{ html|e }}|{{ html|escape }}|{{ html|safe }}|{{ html }}|{{ 'a\nb\n\nc'|indent }}|{{ 'a\nb'|indent(2, first=true) }}
{{ n is number }}{{ n is integer }}{{ f is float }}{{ s is string }}{{ m is mapping }}{{ l is sequence }}{{ l is iterable }}{{ o is none }}{{ y is boolean }}{{ y is true }}{{ n is odd }}{{ n is even }}{{ n is divisibleby 3 }}{{ n is eq 3 }}{{ n is not none }}{{ n is in [3] }}
{{ missing is not defined and n is defined }}{{ x is defined or true }}{{ n is gt 2 }}{{ n is ne 2 }}{{ raise_exception is defined }}{{ namespace is callable }}
a {%- if y -%} b {%- endif -%} c
a {% if y %} b {% endif %} c
x{# comment #}y{#- c -#} z
{% raw %}{{ not this }}{% endraw %} {%- raw -%} {% x %} {%- endraw -%} end
{{ '{{' }}{{ "}}" }}{{ {'a': {'b': 1}}['a']['b'] }}{{ {'a': 1}.a }}
{{ 'tab\there' }}{{ 'nl\nx' }}{{ 'uni\u00e9\x41' }}{{ 'q\'q' }}{{ "back\\slash" }}{{ '\d' }}
{% filter upper %}abc {{ n }}{% endfilter %}|{% generation %}said{% endgeneration %}
{{ raise_exception('no: ' ~ n) }}
{{ dict(a=1, b='x') }}{{ dict(m, z=1).z }}
{% for a, b in [[1, 2], [3, 4]] %}{{ a + b }} {% endfor %}{% for (a, b) in [[1, 2]] %}{{ a }}{% endfor %}
{{ -n }}{{ +n }}{{ - n|abs }}{{ (-5)|abs }}{{ 2 - -2 }}{{ 'a' ~ 1 + 2 }}
{{ l.count(3) }}{{ l.index(1) }}{{ 'x' is filter }}{{ 'upper' is filter }}{{ 'odd' is test }}
{{ l.append(1) }}
{{ ''.__class__ }}
{{ ''.__class__.__mro__ }}
{{ n|nosuchfilter }}
{{ n is nosuchtest }}
{% if n
{{ n
{% for x in l %}
{% endfor %}
{% include 'x' %}
{{ 1 2 }}
{{ m.z[1].a }}{{ m['z'][0] }}{{ r.0.n }}{{ r[1]['n'] }}
{{ 'a' if false }}{{ [] == [] }}{{ {'a': 1} == {'a': 1.0} }}{{ true == 1 }}{{ '1' == 1 }}
{{ loop }}{{ bos_token + eos_token }}
""".strip("\n").split("\n")
BLOCKS = ["  {% if y %}\n    a\n  {% endif %}\nb\n", "{% for x in l %}\n  {{ x }}\n{% endfor %}\n\n", "a\n  {%+ if y %}b{% endif +%}\n c",
          "{{ n }}\n{{ n }}\n", "\n\n{%- set a = 1 %}\n\n{{ a -}}\n\n x", "a\r\nb\r\n{{ n }}", "{# c #}\nx\n  {# c #}\ny", "",
          "{% set ns = namespace() %}{% set ns.a = 1 %}{{ ns.a }}{{ ns.b }}", "{% if true %}\n\n  x{% endif %}\n",
          "{%- for m in [1, 2] -%}\n  {{- m }}\n{%- endfor -%}\n"]


def say(*turns):
    return [{"role": role, "content": content} for role, content in turns]


LONG = [("user", f"question {i}") if i % 2 == 0 else ("assistant", f"<think>\nr{i}\n</think>\n\nanswer {i} ") for i in range(9)]
HARDER = [
    say(("user", "")), say(("user", "   ")), say(("user", "\n\n a \t\n")), say(("system", ""), ("user", "x")),
    say(("system", "  two\n lines  "), ("user", "e\u0301 \U0001f469\u200d\U0001f4bb \u202e\u00a0 世界 \u0130"), ("assistant", "  ok  "),
        ("user", "{{ bos_token }} {% if %} <|im_end|> </s> [INST]")),
    say(("user", "a"), ("assistant", "")), say(("user", "a"), ("user", "b")), say(("system", "s")),
    say(("user", "a"), ("assistant", "b"), ("system", "late"), ("user", "c")), say(*LONG), say(*LONG, ("assistant", "half")),
    say(("developer", "d"), ("user", "x")), say(("user", None)), say(("tool", "22"), ("user", "x")),
]


def of_published(folder, add):
    for path in sorted(folder.rglob("*.jinja")):
        template = path.read_text(encoding="utf-8")
        for i, chat in enumerate(CHATS + HARDER + [CALLS]):
            for tools in (None, TOOLS) if i % 3 == 0 else (None,):
                for more in ({}, {"enable_thinking": False}, {"add_generation_prompt": False}):
                    add(f"{path.stem} {i}", template, {"documents": None, "add_generation_prompt": True, "messages": chat,
                                                       "tools": tools, **more})


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--templates", type=pathlib.Path)
    parser.add_argument("-o", "--output", type=pathlib.Path, default=FILE)
    arguments = parser.parse_args()
    with open(arguments.output, "w", encoding="utf-8", newline="") as file:
        def add(name, template, names):
            try:
                result = _compile_jinja_template(template).render(**TOKENS, **names)
            except Exception:  # the template refuses, or is wrong: so must we
                result = None
            line = {"name": name, "template": template, "names": names, "result": result}
            file.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n")

        if arguments.templates:
            return of_published(arguments.templates, add)
        families = {"chatml": CHATML, "inst": INST, "headers": HEADERS, "thinking": THINKING,
                    "user-assistant": USER_ASSISTANT, "observed": OBSERVED}
        for name, template in families.items():
            base = {"tools": None, "documents": None, "add_generation_prompt": True}
            for i, chat in enumerate(CHATS):
                add(f"{name} {i}", template, {**base, "messages": chat})
            add(f"{name} tools", template, {**base, "messages": CHATS[1], "tools": TOOLS})
            add(f"{name} calls", template, {**base, "messages": CALLS, "tools": TOOLS})
            add(f"{name} whole", template, {**base, "messages": CHATS[2], "add_generation_prompt": False})
            add(f"{name} quiet", template, {**base, "messages": CHATS[0], "enable_thinking": False})
        for i, template in enumerate(SMALL + BLOCKS):
            add(f"small {i}", template, ITEMS)


if __name__ == "__main__":
    main()
