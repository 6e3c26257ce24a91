"""A policy as the text of one C99 file: what it is, its constants, `phasegrad_act`, and a `main` that reads and prints.

Text that strangers chose (names of environments, of entries) stands in comments alone, as ASCII that ends none of them.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from phasegrad.compute.native.graph import C_TYPES, Unsupported
from phasegrad.errors import RunError
from phasegrad.export.c_body import PREFIX, CBody
from phasegrad.export.c_layout import WITH_ONNX, Entry, Layout

WIDTH = 110  # of lines of numbers and of comments

HEAD = """
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#ifndef PHASEGRAD_NO_MAIN
#include <stdio.h>
#include <stdlib.h>
#endif

#define PHASEGRAD_OBSERVATION_SIZE {observation}
#define PHASEGRAD_MASK_SIZE {mask}
#define PHASEGRAD_STATE_SIZE {state}
#define PHASEGRAD_ACTION_SIZE {action}

#ifdef __cplusplus
#define restrict
extern "C" {{
#endif
/* Forget: the next call of phasegrad_act begins an episode. `state` has PHASEGRAD_STATE_SIZE floats; all zeros after. */
void phasegrad_reset(float *state);
/* Write the action for an observation. Returns 0, or 1 where an argument is missing or the observation has a number that is
 * no choice of its entry: then nothing was written. Keeps nothing but `state`, so threads may call it, each with its own. */
int phasegrad_act(const float *observation, const unsigned char *mask, float *state, float *action);
#ifdef __cplusplus
}}
#endif
"""
MAIN = """
#ifndef PHASEGRAD_NO_MAIN
/* A line of numbers for an observation, with those of the mask after them: a line with the action comes out. An empty line
 * begins an episode. */
int main(void) {
    static float numbers[PHASEGRAD_OBSERVATION_SIZE + PHASEGRAD_MASK_SIZE], state[PHASEGRAD_STATE_SIZE + 1];
    static unsigned char mask[PHASEGRAD_MASK_SIZE + 1];
    static float action[PHASEGRAD_ACTION_SIZE];
    const int wanted = PHASEGRAD_OBSERVATION_SIZE + PHASEGRAD_MASK_SIZE;
    char word[256];
    size_t length = 0;
    int count = 0, c;
    long line = 1;
    phasegrad_reset(state);
    do {
        c = getchar();
        if (c != EOF && c != '\\n' && c != ' ' && c != '\\t' && c != ',' && c != '\\r') {
            if (length + 1 == sizeof word) length = 0, word[length++] = '?'; /* far too long */
            word[length++] = (char)c;
            continue;
        }
        if (length) {
            char *end;
            word[length] = 0;
            length = 0;
            if (count < wanted) numbers[count] = (float)strtod(word, &end);
            else end = word;
            if (*end || count == wanted) {
                fprintf(stderr, "Line %ld: %s\\n", line, count == wanted ? "too many numbers." : "not a number.");
                return 1;
            }
            count++;
        }
        if (c != EOF && c != '\\n') continue;
        if (count == 0) {
            phasegrad_reset(state);
        } else {
            if (count < wanted) {
                fprintf(stderr, "Line %ld has %d numbers, but %d are needed.\\n", line, count, wanted);
                return 1;
            }
            for (int i = 0; i < PHASEGRAD_MASK_SIZE; i++) mask[i] = numbers[PHASEGRAD_OBSERVATION_SIZE + i] != 0.0f;
            if (phasegrad_act(numbers, mask, state, action)) {
                fprintf(stderr, "Line %ld: the observation has a number that is no choice of its entry.\\n", line);
                return 1;
            }
            for (int i = 0; i < PHASEGRAD_ACTION_SIZE; i++) printf("%s%.9g", i ? " " : "", (double)action[i]);
            putchar('\\n');
            fflush(stdout);
        }
        count = 0;
        line++;
    } while (c != EOF);
    return 0;
}
#endif
"""


def c_source(layout: Layout, provenance: Mapping[str, str]) -> tuple[str, int]:
    """The file, and about how many bytes of stack a call of its function takes."""
    model = copy.deepcopy(layout.model).cpu().eval()
    try:
        with torch.inference_mode(False), torch.no_grad():
            body = CBody(layout.function(model), layout.examples())
    except Unsupported as error:
        raise RunError(f"The policy cannot be written as C, which has no form for {error} yet: {WITH_ONNX}.") from None
    except Exception as error:  # a user's own encoder may do what cannot be traced
        lines = str(error).strip().splitlines()
        reason = lines[0].rstrip(".") if lines else type(error).__name__
        raise RunError(f"The policy cannot be written as C ({reason}): {WITH_ONNX}.") from error
    inputs = [_input(place, entry, layout) for place, entry in enumerate(layout.entries)]
    pointers = [pointer for _, pointer in inputs]
    pointers += ["allowed"] * bool(layout.mask_size) + ["state"] * bool(layout.memory_size)
    head = HEAD.format(
        observation=layout.observation_size, mask=layout.mask_size, state=layout.state_size, action=layout.action_size
    )
    constants = [_array(f"{PREFIX}{place}", tensor) for place, tensor in enumerate(body.constants)]
    constants += [_choices(place, entry) for place, entry in enumerate(layout.entries) if entry.sizes]
    parts = [
        _comment(_introduction(layout, provenance, body)), head, *constants, "", body.functions(), "", _reset(layout),
        *_act(layout, [text for text, _ in inputs], pointers, body), MAIN,
    ]  # fmt: skip
    stack = body.bytes_of_arrays() + sum(8 * entry.count * layout.frames for entry in layout.entries)
    return "\n".join(parts), stack + 4 * layout.memory_size + layout.mask_size


def _introduction(layout: Layout, provenance: Mapping[str, str], body: CBody) -> list[str]:
    lines = [
        f"A policy, written by phasegrad {provenance['phasegrad.version']}: {provenance['phasegrad.algorithm']} on "
        f"{provenance['phasegrad.env']} after {provenance['phasegrad.step']} steps.",
        f"Checkpoint {provenance['phasegrad.checkpoint_sha256']}.",
        f"{sum(tensor.numel() for tensor in body.constants)} numbers. Needs libm and nothing else; no memory is allocated.",
        "    cc -O2 -o policy FILE -lm            a program: observations as lines of numbers in, actions out",
        "    cc -O2 -DPHASEGRAD_NO_MAIN -c FILE   the function phasegrad_act alone, for C and C++",
        "The normaliser of observations is inside. The action is the most likely one, as the environment takes it.",
        "",
    ]
    for entry in layout.entries:
        lines.append(f"observation{_range(entry.offset, entry.count)}:{entry.described()}")
    if layout.mask_size:
        lines.append(f"mask{_range(0, layout.mask_size)}: 1 for a choice that is allowed, else 0; NULL allows all")
    else:
        lines.append("mask: not read")
    kept = [f"what it remembers, {layout.memory_size} numbers"] if layout.memory_size else []
    kept += [f"the last {layout.frames} observations"] if layout.frames > 1 else []
    state = f"state{_range(0, layout.state_size)}: {' and '.join(kept)}; zeros where an episode begins"
    lines.append(state if kept else "state: not read")
    start = 0
    for part in layout.parts:
        lines.append(f"action{_range(start, part.width)}:{layout.described_action(part)}")
        start += part.width
    return lines


def _range(start: int, count: int) -> str:
    return f"[{start}]" if count == 1 else f"[{start}..{start + count - 1}]"


def _comment(lines: Iterable[str]) -> str:
    """Lines as one comment, whatever is in them."""
    safe = []
    for line in lines:
        text = line.encode("ascii", "backslashreplace").decode()
        text = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)
        for pair in ("*/", "/*", "??"):  # the ends of comments, their beginnings, trigraphs
            while pair in text:
                text = text.replace(pair, f"{pair[0]} {pair[1]}")
        safe.append(" * " + text[:500] + (" ..." if len(text) > 500 else ""))
    return "/*\n" + "\n".join(line.rstrip() for line in safe) + "\n */"


def _array(name: str, tensor: Tensor) -> str:
    if tensor.dtype in (torch.float32, torch.float64):
        numbers = [_float(number, tensor.dtype) for number in tensor.flatten().tolist()]
    else:
        numbers = [str(int(number)) for number in tensor.flatten().tolist()]
    return f"static const {C_TYPES[tensor.dtype]} {name}[{len(numbers)}] = {{\n{_wrapped(numbers)}}};"


def _float(number: float, dtype: torch.dtype) -> str:
    """A number that reads back as the same bits."""
    if not math.isfinite(number):
        return "NAN" if math.isnan(number) else "INFINITY" if number > 0 else "-INFINITY"
    text = f"{number:.9g}" if dtype == torch.float32 else f"{number:.17g}"
    text = text if set(text) & {".", "e"} else f"{text}.0"
    return f"{text}f" if dtype == torch.float32 else text


def _wrapped(words: list[str]) -> str:
    lines, line = [], ""
    for word in words:
        if len(line) + len(word) > WIDTH:
            lines.append(line.rstrip())
            line = ""
        line += f"{word}, "
    return "\n".join([*lines, line.rstrip(", ")]) + "\n"


# From the caller's numbers to those of the network


def _choices(place: int, entry: Entry) -> str:
    """The first number of each choice, and how many there are."""
    starts, sizes = (", ".join(map(str, numbers)) for numbers in (entry.starts, entry.sizes))
    return (
        f"static const int32_t {PREFIX}first_{place}[{entry.count}] = {{{starts}}};\n"
        f"static const int32_t {PREFIX}size_{place}[{entry.count}] = {{{sizes}}};"
    )


def _checked(place: int, entry: Entry) -> str:
    """Statements that refuse an observation with a number that the entry cannot have."""
    number = f"const float x = observation[{entry.offset} + i]"
    if not entry.sizes:
        return f"    for (int i = 0; i < {entry.count}; i++) {{ {number}; if (x != x) return 1; }}"
    first, size = f"{PREFIX}first_{place}[i]", f"{PREFIX}size_{place}[i]"
    inside = f"x >= (float){first} && x < (float)({first} + {size})"
    return f"    for (int i = 0; i < {entry.count}; i++) {{ {number}; if (!({inside}) || x != floorf(x)) return 1; }}"


def _input(place: int, entry: Entry, layout: Layout) -> tuple[str, str]:
    """Statements that make an entry as the network takes it, and where it then is."""
    if layout.frames == 1 and entry.is_direct:
        return "", f"observation + {entry.offset}"
    kind, name = C_TYPES[entry.dtype], f"entry_{place}"
    inner = entry.count // entry.blocks
    frames = layout.frames
    source = f"seen[f * {layout.observation_size} + {entry.offset} + i]"
    if entry.sizes:
        value = f"({kind})((int32_t)x - {PREFIX}first_{place}[i])"
    elif entry.is_direct:
        value = "x"
    else:
        low, high = _limits(entry.dtype)
        value = f"x < {low} ? ({kind}){low} : x > {high} ? ({kind}){high} : ({kind})x"
    target = "i" if frames == 1 else f"(i / {inner} * {frames} + f) * {inner} + i % {inner}"
    text = (
        f"    {kind} {name}[{max(1, entry.count * frames)}];\n"
        f"    for (int f = 0; f < {frames}; f++)\n"
        f"        for (int i = 0; i < {entry.count}; i++) {{ const float x = {source}; {name}[{target}] = {value}; }}"
    )
    return text, name


def _limits(dtype: torch.dtype) -> tuple[str, str]:
    """Floats between which a conversion to these whole numbers is defined."""
    limits = torch.iinfo(dtype)
    if limits.bits > 24:  # the largest float below
        return (
            f"{float(limits.min):.1f}f",
            f"{float(torch.nextafter(torch.tensor(float(limits.max)), torch.tensor(0.0))):.1f}f",
        )
    return f"{limits.min}.0f", f"{limits.max}.0f"


# The functions


def _reset(layout: Layout) -> str:
    body = (
        "    for (int i = 0; i < PHASEGRAD_STATE_SIZE; i++) state[i] = 0.0f;"
        if layout.state_size
        else "    (void)state;"
    )
    return f"void phasegrad_reset(float *state) {{\n{body}\n}}\n"


def _act(layout: Layout, inputs: list[str], pointers: list[str], body: CBody) -> list[str]:
    memory, size = layout.memory_size, layout.observation_size
    required = ["observation", "action"] + ["state"] * bool(layout.state_size)
    lines = ["int phasegrad_act(const float *observation, const unsigned char *mask, float *state, float *action) {"]
    lines.append(f"    if ({' || '.join(f'!{name}' for name in required)}) return 1;")
    lines += [
        _checked(place, entry) for place, entry in enumerate(layout.entries) if entry.sizes or not entry.is_direct
    ]
    if layout.mask_size:
        lines += [
            "    unsigned char allowed[PHASEGRAD_MASK_SIZE];",
            "    for (int i = 0; i < PHASEGRAD_MASK_SIZE; i++) allowed[i] = mask ? mask[i] != 0 : 1;",
        ]
    else:
        lines.append("    (void)mask;")
    if not layout.state_size:
        lines.append("    (void)state;")
    if layout.frames > 1:
        lines += [
            f"    float *const seen = state + {memory}; /* oldest first; then whether the episode has begun */",
            f"    const int begun = seen[{layout.frames * size}] != 0.0f;",
            f"    if (begun) memmove(seen, seen + {size}, {(layout.frames - 1) * size} * sizeof *seen);",
            f"    for (int f = begun ? {layout.frames - 1} : 0; f < {layout.frames}; f++)",
            f"        memcpy(seen + f * {size}, observation, {size} * sizeof *seen);",
            f"    seen[{layout.frames * size}] = 1.0f;",
        ]
    elif any(inputs):
        lines.append("    const float *const seen = observation;")
    lines += [text for text in inputs if text]
    lines.append(body.declarations())
    if memory:
        lines.append(f"    float after[{memory}];")
    lines.append(f"    const void *const inputs[] = {{{', '.join(pointers)}}};")
    lines.append(f"    void *const outputs[] = {{action{', after' if memory else ''}}};")
    lines.append(body.statements())
    if memory:
        lines.append("    memcpy(state, after, sizeof after);")
    return [*lines, "    return 0;", "}"]
