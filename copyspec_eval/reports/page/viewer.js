"use strict";
// Filters, and the answers with what was copied. Texts become text nodes alone, never markup.
(async () => {
  const PAGE = 50;
  // Characters of a text that are shown: a browser takes long to break a longer line.
  const LONGEST = 50000;
  const packed = atob(document.getElementById("data").textContent);
  const bytes = Uint8Array.from(packed, (character) => character.charCodeAt(0));
  const unpacked = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const turns = await new Response(unpacked).json();
  const form = document.getElementById("filters");
  const list = document.getElementById("list");
  const more = document.getElementById("more");
  const count = document.getElementById("count");
  let selected = [];
  let shown = 0;

  const element = (name, className, text) => {
    const node = document.createElement(name);
    if (className) node.className = className;
    if (text !== undefined) node.textContent = text;
    return node;
  };
  // By where a copy starts, if not in prompt or answer.
  const sources = {
    "-1": "from an earlier answer of the run",
    "-2": "from an answer of an earlier run",
  };
  const share = (turn) => (turn.tokens ? (turn.copied || 0) / turn.tokens : 0);

  // --- one turn

  // A text in which a range can be shown; ranges count characters, as Python counts them.
  const readable = (text) => {
    const box = element("div", "text");
    box.append(text.slice(0, LONGEST));
    return box;
  };

  const rest = (text) =>
    text.length > LONGEST
      ? [element("p", "facts", `… and ${text.length - LONGEST} characters more, in turns.jsonl`)]
      : [];

  const unmark = (box) => {
    for (const old of box.querySelectorAll(".source")) {
      old.replaceWith(...old.childNodes);
    }
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

  // Python counts characters, a browser UTF-16 units.
  const units = (text) => {
    if (!/[\ud800-\udfff]/.test(text)) return (place) => place;
    const places = [0];
    for (const character of text) places.push(places[places.length - 1] + character.length);
    return (place) => places[Math.min(place, places.length - 1)];
  };

  const fill = (body, turn) => {
    const prompt = turn.prompt || "";
    const promptBox = readable(prompt);
    const answerBox = element("div", "text answer");
    const answer = turn.pieces.map((piece) => piece[0]).join("");
    const inPrompt = units(prompt);
    const inAnswer = units(answer);
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
      mark.title = sources[start] || "copied";
      const show = () => {
        clear();
        mark.classList.add("now");
        if (start < 0) return;
        markRange(promptBox, inPrompt(Math.min(start, promptLength)), inPrompt(Math.min(end, promptLength)));
        const from = Math.max(start - promptLength, 0);
        const to = Math.max(end - promptLength, 0);
        if (from < to) markRange(answerBox, inAnswer(from), inAnswer(to));
      };
      mark.addEventListener("mouseenter", show);
      mark.addEventListener("click", show);
      mark.addEventListener("mouseleave", clear);
      answerBox.append(mark);
    }
    if (prompt) body.append(element("h4", "", "Prompt"), promptBox, ...rest(prompt));
    body.append(element("h4", "", "Answer"), answerBox, ...rest(answer));
    if (turn.baseline !== undefined) {
      const baseline = turn.baseline;
      body.append(element("h4", "", "Baseline"), readable(baseline), ...rest(baseline));
    }
  };

  const facts = (turn) => {
    const shownFacts = [`${turn.drafter}`];
    if (turn.tokens !== undefined) shownFacts.push(`${turn.tokens} tokens`);
    if (turn.copied !== undefined) shownFacts.push(`${Math.round(100 * share(turn))} % copied`);
    shownFacts.push(`${turn.seconds.toPrecision(3)} s`);
    if (turn.baseline_seconds) shownFacts.push(`${(turn.baseline_seconds / turn.seconds).toFixed(2)} × baseline`);
    return shownFacts.join(", ");
  };

  const entry = (turn) => {
    const details = element("details");
    const summary = element("summary");
    summary.append(`${turn.task} ${turn.doc}, turn ${turn.turn}`);
    if (turn.category) summary.append(`, ${turn.category}`);
    summary.append(element("span", "facts", facts(turn)));
    if (turn.agreement && turn.agreement !== "identical") {
      summary.append(element("span", `facts ${turn.agreement}`, turn.agreement.replace("_", "-")));
    }
    const body = element("div", "body");
    details.append(summary, body);
    details.addEventListener("toggle", () => {
      if (details.open && !body.hasChildNodes()) fill(body, turn);
    });
    return details;
  };

  // --- the list

  const showMore = () => {
    list.append(...selected.slice(shown, shown + PAGE).map(entry));
    shown = Math.min(shown + PAGE, selected.length);
    more.hidden = shown >= selected.length;
  };

  const orders = {
    slowest: (turns) => turns.sort((a, b) => b.seconds - a.seconds),
    least: (turns) => turns.sort((a, b) => share(a) - share(b)),
    diverged: (turns) => turns.filter((turn) => turn.agreement && turn.agreement !== "identical"),
  };

  const filter = () => {
    const chosen = Object.fromEntries(new FormData(form));
    selected = turns.filter((turn) =>
      ["task", "category", "turn", "drafter"].every(
        (name) => !chosen[name] || String(turn[name] ?? "") === chosen[name],
      ),
    );
    if (orders[chosen.order]) selected = orders[chosen.order](selected);
    count.textContent = `${selected.length} turns`;
    list.replaceChildren();
    shown = 0;
    showMore();
  };

  for (const name of ["task", "category", "turn", "drafter"]) {
    const values = [...new Set(turns.map((turn) => String(turn[name] ?? "")))].filter(Boolean);
    values.sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
    const select = form.elements[name];
    select.append(new Option("all", ""), ...values.map((value) => new Option(value, value)));
    select.closest("label").hidden = values.length < 2;
  }
  form.addEventListener("change", filter);
  more.addEventListener("click", showMore);
  document.getElementById("theme").addEventListener("click", () => {
    const root = document.documentElement;
    const dark = root.dataset.theme
      ? root.dataset.theme === "dark"
      : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
  });
  filter();
})();
