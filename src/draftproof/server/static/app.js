// The page: conversation, settings, connection. One answer is answer.js's business.

import { AnswerView, SOURCES, element } from "./answer.js";
import { AnswerError, events } from "./sse.js";

const at = (id) => document.getElementById(id);
const MAX_IMAGE_BYTES = 16 * 1024 * 1024;
const QUICK = 1500, SLOW = 15000;

let messages = [];   // what the model is told, without the system message
let images = [];     // data: URLs for the next message
let running = null;  // AbortController of the answer under way
let profile = null;  // V(m) of this server

// --- the connection ------------------------------------------------------------------------------

let alive = null;

async function watch() {
  let next = SLOW;
  try {
    const response = await fetch("/health", { cache: "no-store" });
    const wasAlive = alive;
    alive = response.ok;
    if (alive) {
      banner("");
      if (wasAlive !== true) await greet();
    } else {
      next = QUICK;
      banner(response.status === 503 ? "The model is being loaded or the server is ending…"
        : `The server answers with status ${response.status}.`);
    }
  } catch {
    alive = false;
    next = QUICK;
    banner("The server is gone. Trying to reach it again…");
  }
  clearTimeout(watch.timer);
  watch.timer = setTimeout(watch, next);
}

async function greet() {
  const models = await (await fetch("/v1/models")).json();
  at("model").textContent = models.data[0].id;
  const response = await fetch("/v1/draftproof/profile");
  profile = response.ok ? await response.json() : null;
}

function banner(text) {
  at("banner").textContent = text;
  at("banner").hidden = !text;
}

// --- asking --------------------------------------------------------------------------------------

function request(speculation, seed) {
  const system = at("system").value.trim();
  return {
    messages: [...(system ? [{ role: "system", content: system }] : []), ...messages],
    temperature: number("temperature", 0),
    max_tokens: Math.round(number("max-tokens", 512)),
    seed,
    speculation,
    speculation_trace: true,
    stream: true,
    stream_options: { include_usage: true },
  };
}

function number(id, fallback) {
  const value = Number(at(id).value);
  return at(id).value !== "" && Number.isFinite(value) ? value : fallback;
}

/** One answer into `view`; false if it isn't complete. */
async function answer(view, speculation, seed) {
  try {
    for await (const event of events(request(speculation, seed), running.signal)) {
      view.add(event);
      follow();
    }
    view.finish();
    return true;
  } catch (error) {
    if (error.name === "AbortError") view.finish(true);
    else if (error instanceof AnswerError) {
      view.fail(error.message);
      watch();
    } else throw error;
    return false;
  }
}

async function respond() {
  setRunning(true);
  const turn = element("article", "turn assistant");
  turn.setAttribute("aria-label", "Answer");
  at("transcript").append(turn);
  const seed = Math.floor(Math.random() * 2 ** 31);
  try {
    const view = at("compare").checked ? await compare(turn, seed) : await single(turn, seed);
    // What was stopped stays in the conversation; an error doesn't.
    if (view.text) messages.push({ role: "assistant", content: view.text });
    at("announcer").textContent = `Answer: ${view.ids.length} tokens.`;
  } finally {
    addAgain(turn);
    setRunning(false);
    follow();
  }
}

async function single(turn, seed) {
  const view = new AnswerView(profile);
  turn.append(view.root);
  await answer(view, at("speculate").checked ? "auto" : "off", seed);
  return view;
}

/** Without and with speculation, one after the other, so that neither slows the other down. Neither
 * drafts from an earlier run. */
async function compare(turn, seed) {
  const off = new AnswerView(profile, "Speculation off");
  const on = new AnswerView(profile, "Speculation on");
  const columns = element("div", "columns");
  columns.append(off.root, on.root);
  turn.append(columns);
  const complete = await answer(off, { drafter: "off", remember: false }, seed)
    && await answer(on, { remember: false }, seed);
  if (complete) turn.append(verdict(off, on));
  return complete ? on : off;
}

function verdict(off, on) {
  const length = Math.max(off.ids.length, on.ids.length);
  let same = 0;
  while (same < length && off.ids[same] === on.ids[same]) same++;
  const identical = same === length && off.text === on.text;
  const rate = (view) => view.timings?.predicted_per_second ?? 0;
  const speedup = rate(off) ? `, ${(rate(on) / rate(off)).toFixed(2)} × as fast` : "";
  return element("p", identical ? "verdict same" : "verdict different", identical
    ? `identical: ${length} of ${length} tokens${speedup}`
    : `DIFFERENT from token ${same} on`);
}

function addAgain(turn) {
  document.querySelectorAll("button.again").forEach((button) => button.remove());
  const again = element("button", "again", "Regenerate");
  again.type = "button";
  again.addEventListener("click", () => {
    if (running) return;
    while (messages.length && messages[messages.length - 1].role === "assistant") messages.pop();
    turn.remove();
    respond();
  });
  turn.append(again);
}

function say(text) {
  const content = images.length
    ? [...images.map((url) => ({ type: "image_url", image_url: { url } })), { type: "text", text }]
    : text;
  // A question that got no answer makes place for the next one.
  if (messages.length && messages[messages.length - 1].role === "user") messages.pop();
  messages.push({ role: "user", content });
  const turn = element("article", "turn user");
  turn.setAttribute("aria-label", "You");
  for (const url of images) {
    const image = element("img");
    image.src = url;
    image.alt = "image of this message";
    turn.append(image);
  }
  turn.append(element("div", "text", text));
  at("welcome").hidden = true;
  at("transcript").append(turn);
  images = [];
  showImages();
  respond();
}

function setRunning(on) {
  running = on ? new AbortController() : null;
  at("stop").hidden = !on;
  at("send").hidden = on;
  at("transcript").setAttribute("aria-busy", String(on));
}

/** Keeps the end in sight, unless the reader has scrolled up. */
function follow() {
  const page = document.scrollingElement;
  if (page.scrollHeight - page.scrollTop - page.clientHeight < 160) {
    page.scrollTop = page.scrollHeight;
  }
}

// --- images --------------------------------------------------------------------------------------

function addFiles(files) {
  for (const file of files) {
    if (!file.type.startsWith("image/")) continue;
    if (file.size > MAX_IMAGE_BYTES) {
      banner(`${file.name} is too large: at most ${MAX_IMAGE_BYTES >> 20} MiB`);
      continue;
    }
    const reader = new FileReader();
    reader.addEventListener("load", () => {
      images.push(reader.result);
      showImages();
    });
    reader.readAsDataURL(file);
  }
}

function showImages() {
  at("images").replaceChildren(...images.map((url, i) => {
    const item = element("li");
    const image = element("img");
    image.src = url;
    image.alt = `image ${i + 1}`;
    const remove = element("button", "", "×");
    remove.type = "button";
    remove.setAttribute("aria-label", `Remove image ${i + 1}`);
    remove.addEventListener("click", () => {
      images.splice(i, 1);
      showImages();
    });
    item.append(image, remove);
    return item;
  }));
}

// --- the controls --------------------------------------------------------------------------------

const THEMES = ["auto", "light", "dark"];

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  at("theme").setAttribute("aria-label", `Theme: ${theme === "auto" ? "as the system" : theme}`);
  at("theme").textContent = { auto: "Theme", light: "Light", dark: "Dark" }[theme];
  localStorage.setItem("theme", theme);
}

function showSources() {
  const on = at("sources").checked;
  document.body.classList.toggle("sources", on);
  at("legend").hidden = !on;
}

function wire() {
  at("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    const text = at("message").value.trim();
    if (running || !text) return;
    at("message").value = "";
    say(text);
  });
  at("message").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      at("composer").requestSubmit();
    }
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") running?.abort();
  });
  at("stop").addEventListener("click", () => running?.abort());
  at("new").addEventListener("click", () => {
    running?.abort();
    messages = [];
    document.querySelectorAll(".turn").forEach((turn) => turn.remove());
    at("welcome").hidden = false;
    at("message").focus();
  });
  at("file").addEventListener("change", () => {
    addFiles(at("file").files);
    at("file").value = "";
  });
  document.addEventListener("paste", (event) => addFiles(event.clipboardData.files));
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    addFiles(event.dataTransfer.files);
  });
  at("sources").addEventListener("change", showSources);
  at("theme").addEventListener("click", () => {
    const now = THEMES.indexOf(document.documentElement.dataset.theme);
    setTheme(THEMES[(now + 1) % THEMES.length]);
  });
  at("settings-button").addEventListener("click", () => {
    const hidden = at("settings").toggleAttribute("hidden");
    at("settings-button").setAttribute("aria-expanded", String(!hidden));
  });
  at("legend").replaceChildren(...Object.entries(SOURCES).map(([name, words]) => {
    const item = element("li");
    item.append(element("span", `token from-${name}`, words));
    return item;
  }));
}

wire();
setTheme(THEMES.includes(localStorage.getItem("theme")) ? localStorage.getItem("theme") : "auto");
showSources();
watch();
at("message").focus();
