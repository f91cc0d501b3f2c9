// The page's files, and the stream of its rows.

package statuspage

import (
	"cmp"
	"embed"
	"encoding/json"
	"io"
	"io/fs"
	"net/http"
	"slices"
	"time"
)

//go:embed static
var static embed.FS

const (
	// maxViewers bounds the viewers at a time.
	maxViewers = 16
	// lookPeriod is the time between two writes of a viewer.
	lookPeriod = time.Second
	// quiet is how long a viewer gets nothing though nothing changes.
	quiet = 15 * time.Second
	// maxLifetime is how long a viewer's request lasts. The page makes the next one, for
	// which the API server asks anew who the viewer is and what it may.
	maxLifetime = 10 * time.Minute
	// writeTimeout is how long a viewer may take to read what is written at a time.
	writeTimeout = 15 * time.Second
	// maxRows is how many rows are written at a time.
	maxRows = 500
)

// policy lets the page load its own files and nothing else, from nowhere else, and be in
// no frame of others. Nothing can make markup or code out of text.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// Handler serves the page below a path, which ends in a slash.
func (p *Page) Handler(at string) http.Handler {
	files, err := fs.Sub(static, "static")
	if err != nil {
		panic(err) // the files are in the program
	}
	mux := http.NewServeMux()
	mux.Handle("GET "+at, http.StripPrefix(at, http.FileServerFS(files)))
	mux.HandleFunc("GET "+at+"fleet", p.serveFleet)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for name, value := range map[string]string{
			"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY",
			"Referrer-Policy": "no-referrer", "Cross-Origin-Resource-Policy": "same-origin", "Cache-Control": "no-store",
		} {
			w.Header().Set(name, value)
		}
		mux.ServeHTTP(w, r)
	})
}

// serveFleet writes all rows, and then those that change, as lines of JSON.
func (p *Page) serveFleet(w http.ResponseWriter, r *http.Request) {
	select {
	case p.viewers <- struct{}{}:
		defer func() { <-p.viewers }()
	default:
		w.Header().Set("Retry-After", "30")
		http.Error(w, "too many look at this page already", http.StatusTooManyRequests)
		return
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	v := &viewer{page: p, out: w, control: http.NewResponseController(w)}
	defer func() { _ = v.control.SetWriteDeadline(time.Time{}) }() // the connection may serve others
	look, end := time.NewTicker(p.look), time.NewTimer(maxLifetime)
	defer look.Stop()
	defer end.Stop()
	for {
		if err := v.write(); err != nil {
			p.log.Debug("a viewer is gone", "err", err)
			return
		}
		select {
		case <-look.C:
		case <-end.C:
			return
		case <-p.closed:
			return
		case <-r.Context().Done():
			return
		}
	}
}

// A message is one line of the stream. Rows replace those of the same ID.
type message struct {
	decision
	Time    int64      `json:"time"`              // in milliseconds since 1970
	Reset   bool       `json:"reset"`             // forget all rows before
	Started int64      `json:"started,omitempty"` // when this server was, with Reset; in seconds
	Nodes   int        `json:"nodes"`             // how many there are
	Audited bool       `json:"audited"`
	Rows    []shownRow `json:"rows,omitempty"`
	Gone    []uint64   `json:"gone,omitempty"`  // IDs
	Live    []int64    `json:"live,omitzero"`   // ID, round trip in microseconds and streams, of each session; nil if that is no news
	Audit   []line     `json:"audit,omitempty"` // oldest first
}

// A shownRow is a row, with its round trips so far if the viewer knows none.
type shownRow struct {
	row
	RTTs    []uint32 `json:"rtts,omitempty"` // oldest first
	Streams int      `json:"streams"`
}

// A viewer is a request, and what it has written.
type viewer struct {
	page    *Page
	out     io.Writer
	control *http.ResponseController

	started        bool
	version        uint64
	sampled, lines uint64
	decision       decision
	wrote          time.Time
}

// write writes what is new.
func (v *viewer) write() error {
	if !v.page.synced() { // nodes that are not there yet would look deleted
		return nil
	}
	m := v.news()
	if v.started && !m.Reset && m.decision == v.decision && m.Live == nil && len(m.Rows)+len(m.Gone)+len(m.Audit) == 0 && time.Since(v.wrote) < quiet {
		return nil
	}
	v.started, v.decision = true, m.decision
	rows := m.Rows
	for {
		m.Rows = rows[:min(len(rows), maxRows)]
		if err := v.send(m); err != nil {
			return err
		}
		if rows = rows[len(m.Rows):]; len(rows) == 0 {
			return nil
		}
		m.Reset, m.Started, m.Gone, m.Live, m.Audit = false, 0, nil, nil, nil
	}
}

func (v *viewer) send(m *message) error {
	if err := v.control.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return err
	}
	if err := json.NewEncoder(v.out).Encode(m); err != nil {
		return err
	}
	v.wrote = time.Now()
	if err := v.control.Flush(); err != nil {
		return err
	}
	return v.control.SetWriteDeadline(time.Time{}) // HTTP/2 resets a stream at its deadline also if nothing is written
}

// news is what the viewer has not written yet. It counts as written from now on.
func (v *viewer) news() *message {
	p := v.page
	m := &message{Time: time.Now().UnixMilli(), Audited: p.cfg.Audited}
	m.Audit, v.lines = p.audit.since(v.lines)
	p.mu.Lock()
	defer p.mu.Unlock()
	m.Nodes, m.decision = len(p.rows), p.decider
	m.Reset = !v.started || v.version < p.floor
	if m.Reset {
		v.sampled, m.Started = p.sampled, seconds(p.cfg.Started)
	}
	m.Rows = p.rowsLocked(v.version, m.Reset)
	if !m.Reset && v.version < p.version {
		for _, g := range p.gone {
			if g.version > v.version {
				m.Gone = append(m.Gone, g.id)
			}
		}
	}
	v.version = p.version
	if v.sampled < p.sampled {
		v.sampled = p.sampled
		m.Live = p.liveLocked()
	}
	return m
}

// rowsLocked are the rows that have changed since a version, or all with their round trips, by
// their IDs.
func (p *Page) rowsLocked(since uint64, all bool) []shownRow {
	if !all && since == p.version {
		return nil
	}
	var changed []*entry // rows are large: pointers are sorted
	for _, e := range p.rows {
		if all || e.version > since {
			changed = append(changed, e)
		}
	}
	slices.SortFunc(changed, func(a, b *entry) int { return cmp.Compare(a.ID, b.ID) })
	rows := make([]shownRow, len(changed))
	for i, e := range changed {
		rows[i] = shownRow{row: e.row, Streams: e.streams}
		if all {
			rows[i].RTTs = e.history(p.sampled)
		}
	}
	return rows
}

// liveLocked are the latest samples of all sessions.
func (p *Page) liveLocked() []int64 {
	out := make([]int64, 0, 3*len(p.rows))
	at := (p.sampled - 1) % samples
	for _, e := range p.rows {
		if e.streams >= 0 {
			out = append(out, int64(e.ID), int64(e.rtts[at]), int64(e.streams)) //nolint:gosec // counted from one
		}
	}
	return out
}

// history are the round trips of the latest samples, oldest first.
func (e *entry) history(sampled uint64) []uint32 {
	n := min(sampled, samples)
	out := make([]uint32, 0, n)
	for i := sampled - n; i < sampled; i++ {
		out = append(out, e.rtts[i%samples])
	}
	return out
}
