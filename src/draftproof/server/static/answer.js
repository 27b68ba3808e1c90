// One answer on the page: its tokens by source, the strip of steps, the statistics. All text of the
// model goes in as textContent, whatever it looks like.

import { breakEven, costAt } from "./chart.js";

export const SOURCES = {
  plain: "plain step",
  bonus: "step's own token",
  window: "window: copied n-gram",
  suffix: "suffix: longest match",
  store: "store: an earlier answer",
  reference: "reference: a given text",
  template: "template: list or record",
  resync: "resync: edited copy",
  grammar: "grammar: only choice",
  other: "another drafter",
};
const MOST_BARS = 600;

export function element(name, className = "", text) {
  const node = document.createElement(name);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

function known(source) {
  return source in SOURCES ? source : "other";
}

export class AnswerView {
  /** profile: V(m) of the server, or null. title: shown above the answer, or "". */
  constructor(profile, title = "") {
    this.profile = profile;
    this.text = "";
    this.ids = [];
    this.finished = false;
    this.root = element("div", "answer");
    if (title) this.root.append(element("h3", "", title));
    this.thoughts = element("details", "thoughts");
    this.thoughts.append(element("summary", "", "Thoughts"));
    this.thoughts.hidden = true;
    this.thoughtText = element("div", "text");
    this.thoughts.append(this.thoughtText);
    this.body = element("div", "text");
    this.live = element("p", "live quiet");
    this.strip = element("div", "strip");
    this.strip.setAttribute("role", "img");
    this.strip.setAttribute("aria-label", "Tokens per step");
    this.root.append(this.thoughts, this.body, this.strip, this.live);
    this.steps = this.accepted = this.rejected = 0;
    this.savedSteps = 0;
    this.began = 0;
  }

  /** One event of the stream. */
  add(event) {
    const choice = event.choices?.[0];
    const delta = choice?.delta ?? {};
    const trace = event.draftproof;
    if (delta.reasoning) {
      this.thoughts.hidden = false;
      this.thoughtText.append(delta.reasoning);
    }
    const content = delta.content ?? "";
    if (content) {
      const fits = trace && trace.texts.join("") === content;
      if (fits) this.#addTokens(trace);
      else this.body.append(content);
      this.text += content;
    }
    if (trace) this.#addStep(trace);
    if (choice?.finish_reason) this.reason = choice.finish_reason;
    if (event.timings) this.timings = event.timings;
    if (event.metrics) this.speculation = event.metrics.speculative_decoding;
    if (event.usage) this.usage = event.usage;
  }

  #addTokens(trace) {
    trace.texts.forEach((text, i) => {
      const source = trace.sources[i];
      const span = element("span", `token from-${known(source)}`, text);
      span.title = SOURCES[source] ?? source;
      this.body.append(span);
      const gone = trace.rejected[i];
      if (gone.length) this.body.append(this.#rejectedMark(gone));
    });
  }

  #rejectedMark(texts) {
    const mark = element("button", "rejected", `×${texts.length}`);
    mark.type = "button";
    mark.setAttribute("aria-label", `${texts.length} draft tokens rejected here: ${texts.join("")}`);
    mark.append(element("span", "tip", texts.join("")));
    return mark;
  }

  #addStep(trace) {
    const now = performance.now();
    if (!this.began) this.began = now;
    const drafted = trace.sources.filter((s) => s !== "plain" && s !== "bonus");
    const rejected = trace.rejected.reduce((sum, texts) => sum + texts.length, 0);
    this.ids.push(...trace.tokens);
    this.steps += 1;
    this.accepted += drafted.length;
    this.rejected += rejected;
    if (this.profile) {
      const rows = 1 + drafted.length + rejected;
      this.savedSteps += trace.tokens.length - costAt(this.profile.verify_cost, rows);
    }
    const bar = element("span", `bar from-${known(drafted[0] ?? "plain")}`);
    bar.style.height = `${Math.min(4 + 3 * (trace.tokens.length - 1), 40)}px`;
    bar.title = `step ${trace.step + 1}: ${drafted.length} accepted + 1`
      + (rejected ? `, ${rejected} rejected` : "");
    this.strip.append(bar);
    if (this.strip.childElementCount > MOST_BARS) this.strip.firstElementChild.remove();
    const seconds = (now - this.began) / 1000;
    const rate = seconds > 0 ? (this.ids.length - 1) / seconds : 0;
    this.live.textContent = `${this.ids.length} tokens in ${this.steps} steps, `
      + `${rate.toFixed(1)} tokens/s` + this.#saved(this.#modelledMs());
  }

  #modelledMs() {
    return this.profile ? this.savedSteps * this.profile.plain_step_ms : 0;
  }

  #saved(ms) {
    if (!this.accepted && !this.rejected) return "";
    const seconds = (Math.abs(ms) / 1000).toFixed(2);
    return `, ${seconds} s ${ms < 0 ? "more than plain decoding" : "saved"}`;
  }

  /** The end of the stream. stopped: by the user. */
  finish(stopped = false) {
    this.finished = true;
    const parts = [];
    const stats = this.speculation;
    if (stopped) parts.push("stopped");
    if (this.usage) parts.push(`prompt ${this.usage.prompt_tokens} tokens`);
    parts.push(`answer ${this.ids.length} tokens in ${this.steps} steps`);
    if (this.timings) parts.push(`${this.timings.predicted_per_second.toFixed(1)} tokens/s`);
    if (stats) {
      parts.push(`${stats.num_accepted_draft_tokens} of ${stats.num_draft_tokens} drafted accepted`);
      parts.push(this.#saved(stats.time_saved_ms).replace(", ", ""));
    }
    if (this.reason === "length") parts.push("cut at its length limit");
    this.live.textContent = parts.filter(Boolean).join(" · ");
    this.live.classList.add("stats");
    if (this.profile) this.#addChart();
  }

  #addChart() {
    const details = element("details", "break-even");
    details.append(element("summary", "", "When it pays here"));
    const stats = this.speculation;
    const tries = stats?.num_spec_steps ?? 0;
    const rows = tries ? 1 + stats.num_draft_tokens / tries : null;
    details.append(breakEven(this.profile.verify_cost, rows, stats?.mean_acceptance_length ?? 0));
    this.root.append(details);
  }

  fail(message) {
    this.finished = true;
    this.root.append(element("p", "error", message));
  }
}
