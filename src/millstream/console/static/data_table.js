// A table around Quasar's. The gateway sends only what has changed, and rows are changed in place: the elements of a row,
// its focus and a text selection in it stay. While a user works in the rows, their order stays too.
const PARTS = {
  props: ["row", "column"],
  emits: ["pick"],
  template: `
    <a v-if="kind === 'link' && row._href" :href="row._href" class="ms-row-link ms-cut" :title="value">{{ value }}</a>
    <a v-else-if="kind === 'pick' && value !== ''" href="#" class="ms-row-link ms-mono ms-cut" :title="value"
      @click.prevent.stop="$emit('pick')"><template v-for="part in parts">{{ part }}<wbr></template></a>
    <span v-else-if="kind === 'badge'" class="ms-cut">
      <span v-if="value !== ''" class="ms-badge" :class="'ms-' + tone" :title="value">{{ value }}</span></span>
    <span v-else-if="kind === 'bar'" class="ms-cut"><span class="ms-bar"><span :style="{width: bar + '%'}"></span></span>
      <span class="ms-bar-text">{{ value }}</span></span>
    <span v-else-if="kind === 'replica'" class="ms-replica" :class="'ms-replica-' + (row._tones?.[column.name] ?? 'none')">
      <span>{{ value.split('|')[0] }}</span><span class="ms-replica-size">{{ value.split('|')[1] ?? '' }}</span></span>
    <span v-else-if="kind === 'wrap'" class="ms-wrap-text">{{ value }}</span>
    <span v-else-if="kind === 'soft'" class="ms-wrap-cell">{{ value }}</span>
    <span v-else-if="kind === 'mono'" class="ms-cut ms-mono" :title="value"><template v-for="part in parts">{{ part }}<wbr></template></span>
    <span v-else class="ms-cut" :class="{'ms-mono': kind === 'nowrap'}" :title="value">{{ value }}</span>
    <button v-if="copied && value !== ''" type="button" class="ms-copy" tabindex="-1" aria-label="Copy"
      title="Copy" @click.prevent.stop="copy"><q-icon name="content_copy" /></button>
  `,
  computed: {
    kind() { return this.column.cell; },
    value() { return String(this.row[this.column.name] ?? ""); },
    // Names of settings and paths: where lines are broken, it is after a dot or a slash if possible.
    parts() { return this.value.split(/(?<=[./])(?=[^./])/); },
    tone() { return this.row._tones?.[this.column.name] ?? "dim"; },
    bar() { return this.row._bars?.[this.column.name] ?? 0; },
    copied() { return ["link", "pick", "mono", "nowrap"].includes(this.kind); },
  },
  methods: {
    copy() { window.millstreamCopy(this.value); },
  },
};

export default {
  components: { CellParts: PARTS },
  template: `
    <q-table ref="qRef" flat dense binary-state-sort class="ms-table" :class="{'ms-pickable': pickable}" row-key="_key"
      :columns="columns" :rows="shown" :grid="$q.screen.lt.sm" :pagination="page" :no-data-label="empty"
      :style="{'--ms-least': leastWidth}" :rows-per-page-options="[25, 50, 100, 250]"
      :hide-pagination="(page.rowsNumber ?? 0) <= 25" :selection="selectable ? 'multiple' : 'none'"
      v-model:selected="selected" @request="ask($event.pagination)" @row-click="clicked" @update:pagination="() => {}"
      rows-per-page-label="Rows per page:" :pagination-label="range">
      <template #top v-if="$q.screen.lt.sm && shown.length > 1">
        <label class="ms-sort">Sort by
          <select :value="page.sortBy" @change="sortBy($event.target.value, page.descending)">
            <option v-if="!columns.some((each) => each.name === page.sortBy)" :value="page.sortBy">as listed</option>
            <option v-for="column in columns" :key="column.name" :value="column.name">{{ column.label }}</option>
          </select></label>
        <q-btn flat dense round :icon="page.descending ? 'arrow_downward' : 'arrow_upward'" aria-label="Direction"
          @click="sortBy(page.sortBy, !page.descending)" />
      </template>
      <template #body-cell="cell">
        <q-td :props="cell" :class="'ms-cell-' + cell.col.cell">
          <div class="ms-cell"><cell-parts :row="cell.row" :column="cell.col" @pick="$emit('pick', cell.row._key)" /></div>
        </q-td>
      </template>
      <template #item="card">
        <div class="ms-row-card" @click="clicked($event, card.row)">
          <q-checkbox v-if="selectable" dense v-model="card.selected" />
          <dl>
            <template v-for="column in columns" :key="column.name">
              <template v-if="String(card.row[column.name] ?? '') !== ''">
                <dt>{{ column.label }}</dt>
                <dd><cell-parts :row="card.row" :column="column" @pick="$emit('pick', card.row._key)" /></dd>
              </template>
            </template>
          </dl>
        </div>
      </template>
    </q-table>
  `,
  props: {
    columns: Array, rows: Array, pagination: Object, version: Number, empty: String, pickable: Boolean,
    selectable: Boolean, leastWidth: String,
  },
  emits: ["request", "pick", "rowPick", "resync", "shown", "select"],
  data() {
    return { shown: this.rows, page: this.pagination, at: this.version, selected: [], waiting: null };
  },
  watch: {
    version(version) {
      if (version < this.at) return; // older than what was sent since
      this.at = version;
      this.page = this.pagination;
      this.waiting = null;
      this.shown = this.rows;
    },
    selected(rows) { this.$emit("select", rows.map((row) => row._key)); },
  },
  mounted() {
    this.freed = () => {
      if (this.waiting && !this.isHeld()) this.arrange(this.waiting);
    };
    document.addEventListener("selectionchange", this.freed);
    this.$el.addEventListener("focusout", () => setTimeout(this.freed));
    this.$emit("shown", this.at); // a tab that is opened late has missed what was sent before
  },
  unmounted() { document.removeEventListener("selectionchange", this.freed); },
  methods: {
    // What the gateway has changed: cells by key of row, the keys of all rows in order, the page.
    patch({ version, rows, order, page, forced }) {
      if (version <= this.at) return;
      if (version !== this.at + 1) return this.$emit("resync");
      this.at = version;
      if (page) this.page = page;
      if (Object.keys(rows).length) {
        this.added = {};
        const known = new Set(this.shown.map((row) => row._key));
        for (const key of Object.keys(rows)) if (!known.has(key)) this.added[key] = rows[key];
        this.shown = this.shown.map((row) => (row._key in rows ? { ...row, ...rows[row._key] } : row));
      }
      if (!order) return;
      if (forced || !this.isHeld()) return this.arrange(order);
      const there = new Set(order);
      const kept = this.shown.map((row) => row._key).filter((key) => there.has(key));
      const isKept = new Set(kept);
      this.arrange([...kept, ...order.filter((key) => !isKept.has(key))]);
      this.waiting = order;
    },
    arrange(order) {
      const byKey = Object.fromEntries(this.shown.map((row) => [row._key, row]));
      this.waiting = null;
      this.shown = order.map((key) => byKey[key] ?? this.added?.[key]).filter(Boolean);
      this.selected = this.selected.filter((row) => order.includes(row._key));
    },
    isHeld() {
      const inside = this.$el.querySelector("tbody") ?? this.$el;
      const marked = document.getSelection();
      return inside.contains(document.activeElement) || (marked && !marked.isCollapsed && inside.contains(marked.anchorNode));
    },
    ask({ page, rowsPerPage, sortBy, descending }) { this.$emit("request", { page, rowsPerPage, sortBy, descending }); },
    sortBy(sortBy, descending) { this.ask({ ...this.page, page: 1, sortBy, descending }); },
    // With a listener of update:pagination Quasar follows the page that the gateway sends.
    range(first, last, all) { return `${first.toLocaleString("en")}–${last.toLocaleString("en")} of ${all.toLocaleString("en")}`; },
    clicked(event, row) { if (this.pickable) this.$emit("rowPick", row._key); },
    unselect() { this.selected = []; },
  },
};
