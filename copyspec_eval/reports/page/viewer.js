// The list of documents, filtered and sorted, and the conversation that is open.
(async () => {
  const packed = atob(document.getElementById("data").textContent);
  const bytes = Uint8Array.from(packed, (character) => character.charCodeAt(0));
  const unpacked = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const turns = await new Response(unpacked).json();
  const form = document.getElementById("filters");
  const list = document.getElementById("list");
  const viewer = document.getElementById("viewer");
  const count = document.getElementById("count");

  // --- conversations: the turns of one document by one arm of a run

  const byKey = new Map();
  for (const turn of turns) {
    turn.answer = turn.pieces.map((piece) => piece[0]).join("");
    if (!byKey.has(turn.key)) byKey.set(turn.key, { key: turn.key, turns: [] });
    byKey.get(turn.key).turns.push(turn);
  }
  const conversations = [...byKey.values()];
  const sum = (each, name) => each.turns.reduce((total, turn) => total + (turn[name] || 0), 0);
  const differs = (turn) => turn.agreement !== undefined && turn.agreement !== "identical";
  // How many times as fast as the baseline; undefined where outputs differ or times are missing.
  const gain = (each) =>
    each.turns.every((turn) => turn.agreement === "identical" && turn.seconds && turn.baseline_seconds)
      ? sum(each, "baseline_seconds") / sum(each, "seconds")
      : undefined;
  for (const each of conversations) {
    const [first] = each.turns;
    each.turns.sort((a, b) => a.turn - b.turn);
    each.name = `${first.task} ${first.doc}` + (first.repeat ? `, repeat ${first.repeat}` : "");
    each.copied = sum(each, "copied") / (sum(each, "tokens") || 1);
    each.gain = gain(each);
    each.differs = each.turns.some(differs);
  }
  const drafters = new Set(turns.map((turn) => turn.drafter));
  const times = (ratio) => (ratio === undefined ? [] : [`${ratio.toFixed(2)}×`]);

  // --- one conversation

  const facts = (turn) => {
    const texts = [];
    if (turn.tokens !== undefined) texts.push(`${turn.tokens} tokens`);
    if (turn.copied !== undefined) texts.push(`${Math.round((100 * turn.copied) / (turn.tokens || 1))} % copied`);
    if (turn.seconds !== undefined) texts.push(`${turn.seconds.toPrecision(3)} s`);
    texts.push(...times(gain({ turns: [turn] })));
    return texts.join(" · ");
  };

  const agreement = (turn) => {
    if (turn.agreement === undefined) return [];
    const text = turn.agreement === "identical" ? "identical to the baseline" : turn.agreement.replace("_", "-");
    return [element("span", `agreement ${turn.agreement}`, text)];
  };

  const turnOf = (each, turn) => {
    const section = element("section", "turn");
    section.id = `/${each.key}/${turn.turn}`;
    const heading = element("h4");
    const link = element("a", "", `Turn ${turn.turn}`);
    link.href = `#${section.id}`;
    heading.append(link);
    const line = element("p", "facts", `${[turn.category, facts(turn)].filter(Boolean).join(" · ")} `);
    line.append(...agreement(turn));
    section.append(heading, line, ...promptAndAnswer(turn), ...againstBaseline(turn), ...timeLine(turn));
    return section;
  };

  let selected = [];
  let open;

  const move = (by) => {
    const next = selected[selected.indexOf(open) + by];
    if (next) show(next);
  };

  const button = (label, key, by) => {
    const node = element("button", "", label);
    node.type = "button";
    node.title = `key ${key}`;
    node.disabled = !selected[selected.indexOf(open) + by];
    node.addEventListener("click", () => {
      move(by);
      const same = [...viewer.querySelectorAll(".bar button")].find((other) => other.textContent === label);
      same.focus();
    });
    return node;
  };

  // The one in the list that the Tab key reaches; arrow keys move on from it.
  const markOpen = () => {
    for (const link of list.querySelectorAll("[aria-current]")) {
      link.removeAttribute("aria-current");
      link.tabIndex = -1;
    }
    const link = list.children[selected.indexOf(open)] || list.firstElementChild;
    if (!link) return;
    link.tabIndex = 0;
    if (selected.includes(open)) link.setAttribute("aria-current", "true");
    list.scrollTop = link.offsetTop - list.offsetTop - list.clientHeight / 3;
  };

  const render = () => {
    const place = selected.indexOf(open);
    const bar = element("div", "bar");
    bar.append(button("← Previous", "k", -1), button("Next →", "j", 1));
    bar.append(element("span", "facts", place < 0 ? "not in the list" : `${place + 1} of ${selected.length}`));
    const heading = element("h3", "", open.name);
    const about = element("p", "facts", [open.turns[0].drafter, `run ${open.turns[0].run}`].join(" · "));
    viewer.replaceChildren(bar, heading, about, ...open.turns.map((turn) => turnOf(open, turn)));
    // Of later turns, the prompt begins with the turns before.
    for (const box of viewer.querySelectorAll(".turn:not(:nth-of-type(1)) .prompt")) box.scrollTop = box.scrollHeight;
    markOpen();
  };

  const show = (each, turn = each.turns[0].turn) => {
    open = each;
    history.replaceState(null, "", `#/${each.key}/${turn}`);
    render();
  };

  // A permalink: "#/run/task/document/drafter/repeat/turn".
  const follow = () => {
    if (!location.hash.startsWith("#/")) return false;
    const cut = location.hash.lastIndexOf("/");
    const each = byKey.get(location.hash.slice(2, cut));
    if (!each) return false;
    open = each;
    render();
    (document.getElementById(location.hash.slice(1)) || viewer).scrollIntoView();
    return true;
  };

  // --- the list

  const entry = (each) => {
    const link = element("a", "", each.name);
    link.href = `#/${each.key}/${each.turns[0].turn}`;
    link.tabIndex = -1;
    const texts = [...(drafters.size > 1 ? [each.turns[0].drafter] : []), ...times(each.gain)];
    texts.push(`${Math.round(100 * each.copied)} % copied`);
    if (each.turns.length > 1) texts.push(`${each.turns.length} turns`);
    link.append(element("span", "facts", texts.join(" · ")));
    if (each.differs) link.append(element("span", "agreement diverged", each.turns.find(differs).agreement.replace("_", "-")));
    link.addEventListener("click", (event) => {
      event.preventDefault();
      show(each);
    });
    return link;
  };

  const haystack = (each) => {
    each.text ??= [each.name, ...each.turns.flatMap((turn) => [turn.category, turn.prompt, turn.answer])].join("\n").toLowerCase();
    return each.text;
  };

  const orders = {
    slowest: (each) => -sum(each, "seconds"),
    least: (each) => each.copied,
    least_gain: (each) => each.gain ?? Infinity,
    most_gain: (each) => -(each.gain ?? -Infinity),
  };

  const filter = () => {
    const chosen = Object.fromEntries(new FormData(form));
    const text = chosen.text.trim().toLowerCase();
    selected = conversations.filter(
      (each) =>
        each.turns.some((turn) =>
          ["task", "category", "drafter"].every((name) => !chosen[name] || String(turn[name] ?? "") === chosen[name]),
        ) &&
        (!chosen.which || each.differs) &&
        (!text || haystack(each).includes(text)),
    );
    const order = orders[chosen.order];
    if (order) selected.sort((a, b) => order(a) - order(b));
    const total = selected.reduce((sum, each) => sum + each.turns.length, 0);
    count.textContent = `${selected.length} documents, ${total} turns`;
    list.replaceChildren(...selected.map(entry));
    if (!selected.length) viewer.replaceChildren(element("p", "empty", "No answer is like that."));
    else if (selected.includes(open)) render();
    else {
      [open] = selected;
      render();
    }
  };

  list.addEventListener("keydown", (event) => {
    const by = { ArrowDown: 1, ArrowUp: -1, Home: -Infinity, End: Infinity }[event.key];
    if (!by) return;
    event.preventDefault();
    const place = [...list.children].indexOf(document.activeElement) + by;
    show(selected[Math.min(Math.max(place, 0), selected.length - 1)]);
    list.querySelector("[aria-current]").focus({ preventScroll: true });
  });
  document.addEventListener("keydown", (event) => {
    const by = { j: 1, k: -1 }[event.key];
    const isTyping = event.target.matches("input, select") || event.ctrlKey || event.metaKey || event.altKey;
    if (by && !isTyping) move(by);
  });

  for (const name of ["task", "category", "drafter"]) {
    const values = [...new Set(turns.map((turn) => String(turn[name] ?? "")))].filter(Boolean);
    values.sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
    const select = form.elements[name];
    select.append(new Option("all", ""), ...values.map((value) => new Option(value, value)));
    select.closest("label").hidden = values.length < 2;
  }
  form.elements.which.closest("label").hidden = !conversations.some((each) => each.differs);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", filter);
  addEventListener("hashchange", follow);
  document.getElementById("theme").addEventListener("click", () => {
    const root = document.documentElement;
    const dark = root.dataset.theme
      ? root.dataset.theme === "dark"
      : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
  });
  filter();
  follow();
})();
