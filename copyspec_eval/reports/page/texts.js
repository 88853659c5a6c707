"use strict";
// An answer's texts: what was copied and from where, and how it differs from the baseline's.
// Texts become text nodes alone, never markup.

// Characters of a text that are shown: a browser takes long to break a longer line.
const LONGEST = 50000;
// Pairs of words that a comparison looks at; longer texts are compared up to their first difference.
const MOST_PAIRS = 4e6;

// By where a copy starts, if not in prompt or answer.
const SOURCES = {
  "-1": "copied from an earlier answer of the run",
  "-2": "copied from an answer of an earlier run",
};

const element = (name, className, text) => {
  const node = document.createElement(name);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
};

// A box that scrolls, so the keyboard has to reach it.
const textBox = (label, className = "") => {
  const box = element("div", `text ${className}`);
  box.tabIndex = 0;
  box.setAttribute("role", "group");
  box.setAttribute("aria-label", label);
  return box;
};

const labelled = (label, ...nodes) => [element("p", "label", label), ...nodes];

// What of a text was left out of its box.
const rest = (text) =>
  text.length > LONGEST
    ? [element("p", "facts", `… and ${text.length - LONGEST} characters more, in turns.jsonl`)]
    : [];

// --- a range of a text; ranges count characters, as Python counts them

// Python counts characters, a browser UTF-16 units.
const units = (text) => {
  if (!/[\ud800-\udfff]/.test(text)) return (place) => place;
  const places = [0];
  for (const character of text) places.push(places[places.length - 1] + character.length);
  return (place) => places[Math.min(place, places.length - 1)];
};

const unmark = (box) => {
  for (const old of box.querySelectorAll(".source")) old.replaceWith(...old.childNodes);
  box.normalize();
};

const markRange = (box, start, end) => {
  const walker = document.createTreeWalker(box, NodeFilter.SHOW_TEXT);
  let place = 0;
  const pieces = [];
  while (walker.nextNode()) {
    const node = walker.currentNode;
    const from = Math.max(start - place, 0);
    const to = Math.min(end - place, node.length);
    if (from < to) pieces.push([node, from, to]);
    place += node.length;
    if (place >= end) break;
  }
  for (const [node, from, to] of pieces) {
    const range = document.createRange();
    range.setStart(node, from);
    range.setEnd(node, to);
    range.surroundContents(element("span", "source"));
  }
  const first = box.querySelector(".source");
  if (first) box.scrollTop = first.offsetTop - box.offsetTop - box.clientHeight / 3;
};

// --- prompt and answer

const showCopies = (turn, promptBox, answerBox) => {
  const prompt = turn.prompt || "";
  const inPrompt = units(prompt);
  const inAnswer = units(turn.answer);
  const promptLength = [...prompt].length;
  const clear = () => {
    unmark(promptBox);
    unmark(answerBox);
    for (const mark of answerBox.querySelectorAll(".now")) mark.classList.remove("now");
  };
  let left = LONGEST;
  for (const [whole, start, end] of turn.pieces) {
    const text = whole.slice(0, left);
    left -= text.length;
    if (!text) break;
    if (start === undefined) {
      answerBox.append(text);
      continue;
    }
    const mark = element("mark", start < 0 ? "stored" : "", text);
    mark.tabIndex = 0;
    mark.title = SOURCES[start] || "copied";
    const show = () => {
      clear();
      mark.classList.add("now");
      if (start < 0) return;
      markRange(promptBox, inPrompt(Math.min(start, promptLength)), inPrompt(Math.min(end, promptLength)));
      const from = Math.max(start - promptLength, 0);
      const to = Math.max(end - promptLength, 0);
      if (from < to) markRange(answerBox, inAnswer(from), inAnswer(to));
    };
    for (const event of ["mouseenter", "click", "focus"]) mark.addEventListener(event, show);
    for (const event of ["mouseleave", "blur"]) mark.addEventListener(event, clear);
    answerBox.append(mark);
  }
};

const promptAndAnswer = (turn) => {
  const { answer, prompt = "" } = turn;
  const promptBox = textBox("Prompt", "prompt");
  promptBox.append(prompt.slice(0, LONGEST));
  const answerBox = textBox("Answer", "answer");
  showCopies(turn, promptBox, answerBox);
  const nodes = prompt ? labelled("Prompt", promptBox, ...rest(prompt)) : [];
  if (answer) nodes.push(...labelled("Answer", answerBox, ...rest(answer)));
  else nodes.push(element("p", "empty", turn.withheld ? "text withheld" : "The answer is empty."));
  return nodes;
};

// --- the baseline's text

// What both texts have, and what only one of them has, in words: [["both" | "answer" | "baseline", text], …].
const difference = (answer, baseline) => {
  const words = [answer, baseline].map((text) => text.match(/[\p{L}\p{N}_]+\s*|[^\p{L}\p{N}_\s]\s*|\s+/gu) || []);
  const [a, b] = words;
  let start = 0;
  while (start < Math.min(a.length, b.length) && a[start] === b[start]) start += 1;
  const [n, m] = [a.length - start, b.length - start];
  const pieces = [["both", a.slice(0, start).join("")]];
  const add = (kind, text) => {
    const last = pieces[pieces.length - 1];
    if (last[0] === kind) last[1] += text;
    else pieces.push([kind, text]);
  };
  let [i, j] = [0, 0];
  if (n * m <= MOST_PAIRS) {
    // How many words the texts share from word i of one and j of the other on.
    const shared = new Uint16Array((n + 1) * (m + 1));
    const at = (row, column) => row * (m + 1) + column;
    for (let row = n - 1; row >= 0; row -= 1) {
      for (let column = m - 1; column >= 0; column -= 1) {
        shared[at(row, column)] =
          a[start + row] === b[start + column]
            ? shared[at(row + 1, column + 1)] + 1
            : Math.max(shared[at(row + 1, column)], shared[at(row, column + 1)]);
      }
    }
    while (i < n && j < m) {
      if (a[start + i] === b[start + j]) {
        add("both", a[start + i]);
        i += 1;
        j += 1;
      } else if (shared[at(i + 1, j)] >= shared[at(i, j + 1)]) {
        add("answer", a[start + i]);
        i += 1;
      } else {
        add("baseline", b[start + j]);
        j += 1;
      }
    }
  }
  for (; i < n; i += 1) add("answer", a[start + i]);
  for (; j < m; j += 1) add("baseline", b[start + j]);
  return pieces.filter(([, text]) => text);
};

const againstBaseline = (turn) => {
  if (turn.baseline === undefined) return [];
  const box = textBox("Baseline");
  box.append(turn.baseline.slice(0, LONGEST));
  const both = textBox("Difference", "difference");
  for (const [kind, text] of difference(turn.answer.slice(0, LONGEST), turn.baseline.slice(0, LONGEST))) {
    both.append(kind === "both" ? text : element(kind === "answer" ? "ins" : "del", "", text));
  }
  const legend = element("p", "label", "Difference: ");
  legend.append(element("ins", "", "with drafts only"), " ", element("del", "", "baseline only"));
  const note = element("p", "facts", "The baseline's text is recorded without special tokens.");
  return [...labelled("Baseline", box, ...rest(turn.baseline)), legend, both, note];
};
