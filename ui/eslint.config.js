import js from "@eslint/js";
import ts from "typescript-eslint";

export default ts.config(
  { ignores: ["dist", "node_modules", "src/types"] },
  js.configs.recommended,
  ...ts.configs.recommended,
  {
    rules: {
      eqeqeq: "error",
      "no-restricted-properties": [
        "error",
        { property: "innerHTML", message: "Text of models and files is never HTML: use a Lit template." },
        { property: "outerHTML", message: "Text of models and files is never HTML: use a Lit template." },
      ],
      "no-restricted-imports": [
        "error",
        { patterns: [{ group: ["lit/directives/unsafe-*"], message: "Nothing here is trusted HTML." }] },
      ],
    },
  },
);
