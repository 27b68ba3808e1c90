// One streamed answer of /v1/chat/completions. Knows no page.

/** An answer that the server refused or broke off, in words for people. */
export class AnswerError extends Error {}

/** Yields the JSON objects of the events until [DONE]. Throws AnswerError, or AbortError. */
export async function* events(body, signal) {
  let response;
  try {
    response = await fetch("/v1/chat/completions", {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify(body),
      signal,
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new AnswerError("The server can't be reached.");
  }
  if (!response.ok) throw new AnswerError(await reason(response));
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let complete = false;
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) {
        const data = block.split("\n").filter((line) => line.startsWith("data:"))
          .map((line) => line.slice(5).trimStart()).join("\n");
        if (data === "[DONE]") complete = true;
        else if (data) yield checked(JSON.parse(data));
      }
    }
  } catch (error) {
    if (error.name === "AbortError" || error instanceof AnswerError) throw error;
    throw new AnswerError("The connection broke while the answer came.");
  } finally {
    reader.cancel().catch(() => {});
  }
  if (!complete) throw new AnswerError("The answer ended too early: the server went away.");
}

function checked(event) {
  if (event.error) throw new AnswerError(event.error.message ?? "The server reports an error.");
  return event;
}

async function reason(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `The server answers with status ${response.status}.`;
  }
}
