import { describe, expect, it } from "vitest";
import { blocks, inline } from "../src/lib/markdown";

describe("markdown", () => {
  it("keeps code as it is, also while it grows", () => {
    const text = "Before\n```rust\nfn main() {}\n\n# no heading\n```\nAfter";
    expect(blocks(text)).toEqual([
      { kind: "text", text: "Before" },
      { kind: "code", language: "rust", text: "fn main() {}\n\n# no heading", open: false },
      { kind: "text", text: "After" },
    ]);
    expect(blocks("```\nhalf")).toEqual([{ kind: "code", language: "", text: "half", open: true }]);
    expect(blocks("````\n```\n````")).toEqual([{ kind: "code", language: "", text: "```", open: false }]);
  });
  it("knows headings, lists and tables", () => {
    expect(blocks("## Title\n\n1. one\n2. two\n   more\n\n- a\n- b\n\n|x|y|\n|--|:-:|\n|1|2|\n")).toEqual([
      { kind: "heading", level: 2, text: "Title" },
      { kind: "list", ordered: true, start: 1, items: ["one", "two\nmore"] },
      { kind: "list", ordered: false, start: 1, items: ["a", "b"] },
      { kind: "table", head: ["x", "y"], rows: [["1", "2"]] },
    ]);
  });
  it("leaves HTML as text", () => {
    const evil = "<img src=x onerror=alert(1)> <script>alert(1)</script>";
    expect(blocks(evil)).toEqual([{ kind: "text", text: evil }]);
    expect(inline(evil)).toEqual([evil]);
  });
  it("does not mistake arithmetic for emphasis", () => {
    expect(inline("2 * 3 * 4 and a*b*c")).toEqual(["2 * 3 * 4 and a*b*c"]);
    expect(inline("**bold** and `a * b`").filter((p) => typeof p !== "string")).toHaveLength(2);
  });
  it("never loses text and always ends", () => {
    const alphabet = ["`", "```", "\n", "*", "**", "#", " ", "-", "1.", "|", "--", "a", "<b>", "~~~", "\r\n"];
    let seed = 7;
    const next = () => (seed = (seed * 1103515245 + 12345) % 2147483648);
    for (let round = 0; round < 3000; round++) {
      const text = Array.from({ length: next() % 24 }, () => alphabet[next() % alphabet.length]).join("");
      const told = JSON.stringify(blocks(text));
      expect(told.split("a").length, text).toBeGreaterThanOrEqual(text.replace(/^ {0,3}(`{3,}|~{3,}).*$/gm, "").split("a").length > 1 ? 2 : 1);
    }
  });
});
