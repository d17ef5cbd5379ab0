// Draws the charts of a page with uPlot, from /ui/series. The tables of the page have the same numbers.
"use strict";

(() => {
  const HEIGHT = 210; // px of a chart without its legend
  const CATEGORIES = 8; // colours --c0 to --c7, for lines without an own colour

  // Colour and stroke by the name of a line. Dashes distinguish lines for readers who cannot see colours.
  const STYLES = {
    dedicated: ["--dedicated"], "own spare": ["--spare"], lent: ["--lent"], idle: ["--idle"],
    borrowed: ["--borrowed"], "of the own pool": ["--dedicated"],
    "pending jobs": ["--waiting"], "GPUs they need": ["--borrowed", [6, 4]],
    mean: ["--dedicated"], "mean alone": ["--lent"], p90: ["--dedicated", [2, 4]], "p90 alone": ["--lent", [2, 4]],
    earlier: ["--dedicated"], later: ["--lent"], compared: ["--idle"], slowed: ["--lent"],
    forecast: ["--waiting", [6, 4]], came: ["--dedicated"], "other pools": ["--idle"],
  };
  // All charts show the pointer, but only one handles a drag, so that the address changes only once.
  const SYNC = { key: "sia", filters: { pub: (kind) => kind === "mousemove" || kind === "mouseleave", sub: () => true } };
  const BARS = new Set(["saved", "jobs"]);

  const root = () => document.getElementById("charts");
  const from = () => document.getElementById("charts-as-of")?.dataset.from;
  const state = () => `${from()} ${document.querySelector("#charts-as-of time")?.dateTime}`;
  const plots = new Map();
  let drawn = "", loading = false, again = false;

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const some = new Intl.NumberFormat(undefined, { maximumFractionDigits: 1 });
  const short = new Intl.NumberFormat(undefined, { notation: "compact" });
  const few = new Intl.NumberFormat(undefined, { maximumSignificantDigits: 3 });
  const time = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
  const day = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });
  const both = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", hourCycle: "h23" });

  function duration(seconds) {
    if (seconds < 60) return `${few.format(seconds)} s`;
    if (seconds < 3600) return `${some.format(seconds / 60)} min`;
    if (seconds < 172800) return `${some.format(seconds / 3600)} h`;
    return `${some.format(seconds / 86400)} d`;
  }

  function shown(value, unit) {
    if (value === null || value === undefined) return "–";
    if (unit === "seconds") return duration(value);
    if (unit === "hours") return `${few.format(value)} h`;
    return value < 1e4 ? some.format(value) : short.format(value);
  }

  // Ticks of a time axis: the day at midnight, else the time.
  function moments(_, splits) {
    return splits.map((at) => {
      const when = new Date(at * 1000);
      return when.getHours() || when.getMinutes() ? time.format(when) : day.format(when);
    });
  }

  // Ticks in seconds at whole minutes, hours or days.
  const SECONDS = [1, 5, 10, 30, 60, 300, 600, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 432000, 864000];

  // Ticks of an axis that counts something.
  const WHOLE = Array.from({ length: 8 }, (_, i) => [1, 2, 5].map((each) => each * 10 ** i)).flat();

  function styleOf(name, at) {
    const [variable, dash] = STYLES[name] ?? [`--c${at % CATEGORIES}`];
    return { stroke: colour(variable), dash };
  }

  function stack(lines) {
    let below = null;
    return lines.map(({ values }) => {
      below = values.map((value, i) => (value === null ? null : value + (below?.[i] ?? 0)));
      return below;
    });
  }

  function optionsOf(chart, width) {
    const { unit, lines, stacked } = chart, bars = BARS.has(chart.metric);
    const ink = colour("--quiet"), grid = { stroke: colour("--line"), width: 1 };
    const axis = { stroke: ink, grid, ticks: grid, font: "12px system-ui, sans-serif" };
    const series = lines.map((line, at) => {
      const { stroke, dash } = styleOf(line.name, at);
      return {
        label: line.name, stroke, dash: stacked || bars ? undefined : dash, width: bars ? 0 : stacked ? 1 : 2, spanGaps: true,
        fill: stacked ? stroke : bars ? stroke + "b0" : undefined,
        paths: bars ? uPlot.paths.bars({ size: [0.8, 40] }) : undefined,
        points: { show: !bars && line.values.filter((value) => value !== null).length < 3 },
        value: (_, __, ___, i) => shown(i === null ? null : line.values[Math.min(i, line.values.length - 1)], unit),
      };
    });
    const last = lines.length, dashes = series.map((each) => each.dash);
    return {
      width, height: HEIGHT,
      padding: [8, 24, 0, 0],
      cursor: { sync: SYNC, drag: { x: true, y: false, setScale: false }, bind: { dblclick: () => leave } },
      legend: { live: true, markers: { dash: (_, i) => ({ 2: "dotted", 6: "dashed" })[dashes[i - 1]?.[0]] ?? "solid" } },
      scales: { y: { range: (_, __, most) => [0, most > 0 ? most * 1.1 : 1] } },
      axes: [
        { ...axis, space: 70, values: moments },
        { ...axis, size: 62, incrs: unit === "seconds" ? SECONDS : unit === "jobs" ? WHOLE : undefined,
          values: (_, splits) => splits.map((each) => shown(each, unit)) },
      ],
      series: [{ label: "from", value: (_, at) => (at === null ? "–" : both.format(new Date(at * 1000))) }, ...series],
      bands: stacked ? Array.from({ length: last - 1 }, (_, i) => ({ series: [i + 2, i + 1] })) : [],
      hooks: {
        setSelect: [zoom],
        setCursor: [(plot) => plot.cursor.idx === null && newestInLegend(plot)],
      },
    };
  }

  // Without a pointer over a chart, its legend has the newest values.
  function newestInLegend(plot) {
    plot.setLegend({ idx: plot.data[0].length - 1 }, false);
  }

  // Zooming in changes the range in the address of the page, which sia.js then shows.
  function zoom(plot) {
    const { left, width } = plot.select;
    if (!width) return;
    const [begin, end] = [left, left + width].map((at) => plot.posToVal(at, "x"));
    plot.setSelect({ left: 0, width: 0 }, false);
    if (end - begin >= newest.step) sia.move(begin, end);
  }

  function leave() {
    if (new URL(location).searchParams.has("from")) sia.move();
  }

  function draw(series) {
    for (const plot of plots.values()) plot.destroy();
    plots.clear();
    for (const chart of series.charts) {
      const place = document.querySelector(`[data-metric="${chart.metric}"]`);
      if (!place) continue;
      const values = chart.stacked ? stack(chart.lines) : chart.lines.map((line) => line.values);
      const none = !series.times.length || !chart.lines.some((line) => line.values.some((value) => value !== null && value !== 0));
      place.textContent = none ? place.dataset.nothing : "";
      place.classList.toggle("empty", none);
      if (none) continue;
      // A single sample is the mean over its period, so it is drawn with the length of the period.
      const only = series.times.length === 1, twice = ([value]) => [value, value];
      const times = only ? [series.times[0], series.times[0] + series.step] : series.times;
      const plot = new uPlot(optionsOf(chart, place.clientWidth), [times, ...(only ? values.map(twice) : values)], place);
      newestInLegend(plot);
      plots.set(place, plot);
    }
  }

  let newest = null;

  async function load() {
    if (!from()) return;
    if (loading) {
      again = true;
      return;
    }
    loading = true;
    const shown = state();
    try {
      const answer = await fetch(from(), { headers: { Accept: "application/json" } });
      if (answer.ok) {
        newest = await answer.json();
        drawn = shown;
        draw(newest);
      }
    } catch {
      // sia.js reports that the daemon does not answer
    } finally {
      loading = false;
      if (again) load();
      again = false;
    }
  }

  document.addEventListener("DOMContentLoaded", () => {
    if (!root()) return;
    for (const details of document.querySelectorAll("details.numbers")) {
      details.open = false; // without scripts the tables are open
      details.classList.add("closes");
    }
    document.addEventListener("sia:shown", () => {
      if (state() !== drawn) load();
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => newest && draw(newest));
    new ResizeObserver(() => {
      for (const [place, plot] of plots) plot.setSize({ width: place.clientWidth, height: HEIGHT });
    }).observe(root());
    load();
  });
})();
