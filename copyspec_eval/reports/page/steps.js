// The time line of an answer: a column per step, of the tokens that it gave and those rejected.

const SVG = "http://www.w3.org/2000/svg";
const drawing = (name, attributes) => {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  return node;
};

const stepCounts = (steps) => {
  const sum = (place) => steps.reduce((total, step) => total + step[place], 0);
  const [drafted, accepted] = [sum(0), sum(1)];
  return { drafted, accepted, rejected: drafted - accepted, attempts: steps.filter((step) => step[0]).length };
};

const timeLine = (turn) => {
  if (!turn.steps) return [element("p", "facts", "Its steps are not recorded, or too many to be drawn.")];
  const { drafted, accepted, rejected, attempts } = stepCounts(turn.steps);
  const text =
    `${turn.steps.length} steps, ${attempts} with a draft: ${drafted} tokens drafted, ` +
    `${accepted} accepted, ${rejected} rejected`;
  const height = Math.max(...turn.steps.map(([asked]) => asked)) + 1;
  const image = drawing("svg", {
    class: "steps",
    viewBox: `0 0 ${turn.steps.length} ${height}`,
    preserveAspectRatio: "none",
    role: "img",
    "aria-label": text,
  });
  // From the bottom up: the model's token, the accepted ones, the rejected ones; a path each.
  const columns = { own: "", accepted: "", rejected: "" };
  const draw = (name, place, from, to) => {
    if (from < to) columns[name] += `M${place + 0.1},${height - from}V${height - to}h.8V${height - from}z`;
  };
  turn.steps.forEach(([asked, taken], place) => {
    draw("own", place, 0, 1);
    draw("accepted", place, 1, 1 + taken);
    draw("rejected", place, 1 + taken, 1 + asked);
  });
  for (const [name, path] of Object.entries(columns)) image.append(drawing("path", { class: name, d: path }));
  const legend = element("p", "facts legend", `${text}. `);
  for (const [name, meaning] of [["own", "the model's own token"], ["accepted", "accepted"], ["rejected", "rejected"]]) {
    const item = element("span");
    item.append(element("i", name), ` ${meaning}`);
    legend.append(item, " ");
  }
  const notes = turn.ordered
    ? []
    : [element("p", "facts", "Between two accepted copies, steps with a rejected draft are drawn before those without a draft: their order is not recorded.")];
  return [...labelled("Steps", image), legend, ...notes];
};
