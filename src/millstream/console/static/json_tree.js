// A JSON value as a tree: names, values in colours, parts that open and close. All of it is text; nothing is markup.
const JsonNode = {
  name: "JsonNode",
  props: { node: Object, depth: Number },
  data() { return { open: this.depth < 3 && (this.node.c?.length ?? 0) <= 100 }; },
  template: `
    <div class="ms-json-line">
      <button v-if="node.c" type="button" class="ms-json-fold" :aria-expanded="open" :aria-label="node.n ?? 'value'"
        @click="open = !open">{{ open ? "▾" : "▸" }}</button>
      <span v-if="node.n !== null" class="ms-json-name">{{ node.n }}</span>
      <span :class="'ms-json-' + node.k">{{ node.t }}</span>
      <div v-if="node.c && open" class="ms-json-inner">
        <json-node v-for="(each, at) in node.c" :key="at" :node="each" :depth="depth + 1" />
      </div>
    </div>`,
};
JsonNode.components = { JsonNode };
export default {
  components: { JsonNode },
  props: { node: Object },
  template: `<div class="ms-json"><json-node v-if="node" :node="node" :depth="0" :key="JSON.stringify(node).length" /></div>`,
};
