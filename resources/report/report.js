// Sorting, copying, hovering and heatmaps of the report. No network, no library.
'use strict';
(function () {
  const tip = document.getElementById('tip');

  function showTip(text, event) {
    tip.textContent = text;
    tip.style.display = 'block';
    const box = tip.getBoundingClientRect();
    const x = Math.min(event.clientX + 14, window.innerWidth - box.width - 8);
    const y = event.clientY + 18 + box.height > window.innerHeight ? event.clientY - box.height - 10 : event.clientY + 18;
    tip.style.left = Math.max(4, x) + 'px';
    tip.style.top = y + 'px';
  }
  function hideTip() { tip.style.display = 'none'; }

  document.addEventListener('mousemove', function (event) {
    const marked = event.target.closest ? event.target.closest('[data-tip]') : null;
    if (marked) showTip(marked.getAttribute('data-tip'), event);
    else if (event.target.tagName !== 'CANVAS') hideTip();
  });
  document.addEventListener('mouseleave', hideTip);

  // Tables: a click on a heading sorts by the raw value; undefined values stay below.
  function sortBy(table, column) {
    const heading = table.tHead.rows[0].cells[column];
    const down = heading.getAttribute('aria-sort') !== 'descending';
    for (const other of table.tHead.rows[0].cells) other.removeAttribute('aria-sort');
    heading.setAttribute('aria-sort', down ? 'descending' : 'ascending');
    const body = table.tBodies[0];
    const key = function (row) {
      const cell = row.cells[column], value = cell.getAttribute('data-v');
      if (value === '') return null;
      return cell.classList.contains('n') ? Number(value) : value;
    };
    const rows = Array.from(body.rows).map(function (row) { return { row: row, key: key(row) }; });
    rows.sort(function (a, b) {
      if (a.key === null || b.key === null) return (a.key === null) - (b.key === null);
      const order = typeof a.key === 'number' && typeof b.key === 'number'
        ? a.key - b.key : String(a.key).localeCompare(String(b.key), 'en', { numeric: true });
      return down ? -order : order;
    });
    for (const entry of rows) body.appendChild(entry.row);
  }

  function csvOf(table) {
    const quote = function (text) {
      return /[",\r\n]|^[ \t]|[ \t]$/.test(text) ? '"' + text.replace(/"/g, '""') + '"' : text;
    };
    const lines = [Array.from(table.tHead.rows[0].cells).map(function (c) { return quote(c.getAttribute('data-id')); })];
    for (const row of table.tBodies[0].rows)
      lines.push(Array.from(row.cells).map(function (c) { return quote(c.getAttribute('data-v')); }));
    return lines.map(function (line) { return line.join(','); }).join('\n') + '\n';
  }

  function copy(text, button) {
    const said = button.textContent;
    const done = function (word) {
      button.textContent = word;
      setTimeout(function () { button.textContent = said; }, 1400);
    };
    const fallback = function () { // pages opened from a file have no clipboard in some browsers
      const area = document.createElement('textarea');
      area.value = text;
      document.body.appendChild(area);
      area.select();
      done(document.execCommand('copy') ? 'Copied' : 'Not copied');
      area.remove();
    };
    if (navigator.clipboard && window.isSecureContext)
      navigator.clipboard.writeText(text).then(function () { done('Copied'); }, fallback);
    else fallback();
  }

  document.addEventListener('click', function (event) {
    const heading = event.target.closest('thead th');
    if (heading) sortBy(heading.closest('table'), heading.cellIndex);
    const button = event.target.closest('button[data-copy]');
    if (!button) return;
    const subject = document.getElementById(button.getAttribute('data-copy'));
    copy(subject.tagName === 'TABLE' ? csvOf(subject) : subject.textContent, button);
  });
  document.addEventListener('keydown', function (event) {
    if (event.key !== 'Enter' || event.target.tagName !== 'TH') return;
    sortBy(event.target.closest('table'), event.target.cellIndex);
  });

  // Numbers as the rest of the report writes them.
  function digits(value) {
    const size = Math.abs(value);
    const decimals = size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : size >= 0.01 ? 3 : 4;
    return String(Number(value.toFixed(decimals)));
  }
  function format(value, unit) {
    if (!isFinite(value)) return 'undefined';
    if (unit === 'µs') return format(value * 1e3, 'ns');
    if (unit === 'ratio') return value.toFixed(3);
    if (unit === 'fraction') return (value * 100).toFixed(1) + ' %';
    const scales = unit === 'ns' ? [[1e9, 's'], [1e6, 'ms'], [1e3, 'µs'], [1, 'ns']]
      : unit === 'B' ? [[1073741824, 'GiB'], [1048576, 'MiB'], [1024, 'KiB'], [1, 'B']] : null;
    if (!scales) return digits(value);
    for (const scale of scales) if (Math.abs(value) >= scale[0]) return digits(value / scale[0]) + ' ' + scale[1];
    return digits(value) + ' ' + scales[scales.length - 1][1];
  }

  // Heatmaps: viridis, one pixel a cell, enlarged by the browser.
  const ramp = [[68, 1, 84], [72, 40, 120], [62, 74, 137], [49, 104, 142], [38, 130, 142], [31, 158, 137], [53, 183, 121],
    [110, 206, 88], [181, 222, 43], [253, 231, 37]];
  function colour(t) {
    const place = Math.min(Math.max(t, 0), 1) * (ramp.length - 1), low = Math.min(Math.floor(place), ramp.length - 2);
    return ramp[low].map(function (c, i) { return Math.round(c + (place - low) * (ramp[low + 1][i] - c)); });
  }
  function decode(text) {
    const bytes = atob(text), view = new DataView(new ArrayBuffer(bytes.length));
    for (let i = 0; i < bytes.length; ++i) view.setUint8(i, bytes.charCodeAt(i));
    const values = new Float32Array(bytes.length / 4);
    for (let i = 0; i < values.length; ++i) values[i] = view.getFloat32(i * 4, true);
    return values;
  }

  function heatmap(box) {
    const data = JSON.parse(box.querySelector('script').textContent);
    const canvas = box.querySelector('canvas'), select = box.querySelector('select');
    canvas.width = data.columns;
    canvas.height = data.rows.length;
    canvas.style.height = Math.max(120, Math.min(420, data.rows.length * 16)) + 'px';
    let shown = null;
    function draw() {
      const metric = data.metrics[select.selectedIndex];
      shown = { values: decode(metric.data), metric: metric };
      let low = metric.low, high = metric.high;
      if (low === null || high === null) {
        low = Infinity; high = -Infinity;
        for (const v of shown.values) if (isFinite(v)) { low = Math.min(low, v); high = Math.max(high, v); }
      }
      const context = canvas.getContext('2d'), image = context.createImageData(canvas.width, canvas.height);
      for (let column = 0; column < data.columns; ++column)
        for (let row = 0; row < data.rows.length; ++row) {
          const value = shown.values[column * data.rows.length + row], at = 4 * (row * data.columns + column);
          const rgb = isFinite(value) ? colour(high > low ? (value - low) / (high - low) : 1) : [150, 156, 166];
          image.data.set([rgb[0], rgb[1], rgb[2], isFinite(value) ? 255 : 90], at);
        }
      context.putImageData(image, 0, 0);
      box.querySelector('.low').textContent = format(low, metric.unit);
      box.querySelector('.high').textContent = format(high, metric.unit);
      box.querySelector('.ramp').style.background = 'linear-gradient(to right,' +
        ramp.map(function (c) { return 'rgb(' + c.join(',') + ')'; }).join(',') + ')';
      box.querySelector('.help').textContent = metric.help;
    }
    canvas.addEventListener('mousemove', function (event) {
      const area = canvas.getBoundingClientRect();
      const column = Math.min(data.columns - 1, Math.max(0, Math.floor((event.clientX - area.left) / area.width * data.columns)));
      const row = Math.min(data.rows.length - 1, Math.max(0, Math.floor((event.clientY - area.top) / area.height * data.rows.length)));
      const first = data.first + column * data.stepsPerColumn, last = Math.min(first + data.stepsPerColumn - 1, data.last);
      const value = shown.values[column * data.rows.length + row];
      showTip(data.rows[row] + ', step ' + first + (last > first ? '–' + last + ' (mean)' : '') + '\n' +
        shown.metric.title + ' ' + format(value, shown.metric.unit), event);
    });
    canvas.addEventListener('mouseleave', hideTip);
    select.addEventListener('change', draw);
    draw();
  }
  document.querySelectorAll('.heat').forEach(heatmap);
}());
