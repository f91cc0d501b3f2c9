package explain

// The page.

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// WriteText writes r for people, in one page.
func (r *Report) WriteText(w io.Writer) error {
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	line := func(name, format string, args ...any) {
		fmt.Fprintf(t, "%s\t%s\n", name, fmt.Sprintf(format, args...))
	}
	where := r.Node
	if r.Site != "" {
		where += ", at site " + r.Site
	}
	if r.Cordoned {
		where += ", cordoned"
	}
	line("Node", "%s", where)
	line("Verdict", "%s", r.Verdict.Text)
	if r.Identity != "" {
		line("Identity", "%s", r.Identity)
	}
	r.layers(line)
	if e := r.LastError; e != nil {
		line("Last error", "%s; %s", e.Text, r.since(e.Since))
	}
	if r.Autonomy != "" {
		line("Autonomy", "%s, by annotation", r.Autonomy)
	}
	r.clocks(line)
	for i, e := range r.Events {
		name := ""
		if i == 0 {
			name = "Events"
		}
		line(name, "%s  %s  %s", stamp(e.At), e.Reason, e.Message)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// layers tell how each stands.
func (r *Report) layers(line func(name, format string, args ...any)) {
	noTunnel, noProbe := "none known", "not probed"
	if r.SSHTarget != "" {
		noTunnel, noProbe = "none: the server reaches the node by ssh", "not probed: "+dialCommand(r.SSHTarget)
	}
	for _, c := range []struct {
		name string
		is   *Condition
		none string
	}{
		{"Ready", r.Ready, "never reported"},
		{"Tunnel", r.Tunnel, noTunnel},
		{"Kubelet API", r.DataPath, noProbe},
	} {
		if c.is == nil {
			line(c.name, "%s", c.none)
			continue
		}
		line(c.name, "%s (%s) %s: %s", c.is.Status, c.is.Reason, r.since(c.is.Since), c.is.Message)
		if c.name == "Ready" {
			r.heartbeats(line)
		}
	}
	if r.Ready == nil {
		r.heartbeats(line)
	}
}

func (r *Report) heartbeats(line func(name, format string, args ...any)) {
	h := r.Heartbeat
	fresh := "fresh"
	if h.Stale {
		fresh = "stale"
	}
	switch {
	case h.Lease.IsZero() && h.Status.IsZero():
		line("Heartbeat", "none ever")
	case h.Lease.IsZero():
		line("Heartbeat", "%s: no lease; status posted %s", fresh, r.ago(h.Status))
	default:
		line("Heartbeat", "%s: lease renewed %s by %s, good for %s; status posted %s", fresh, r.ago(h.Lease), h.Holder, h.Duration, r.ago(h.Status))
	}
}

// clocks tell of taints, pods and what comes next.
func (r *Report) clocks(line func(name, format string, args ...any)) {
	for i, t := range r.Taints {
		name := ""
		if i == 0 {
			name = "Taints"
		}
		key := t.Key
		if t.Value != "" {
			key += "=" + t.Value
		}
		line(name, "%s:%s %s", key, t.Effect, r.since(t.Since))
	}
	going, leaving := 0, 0
	for _, p := range r.Pods {
		if p.Evicted && p.Leaving.IsZero() && !p.Terminal {
			going++
		}
		if !p.Leaving.IsZero() {
			leaving++
		}
	}
	line("Pods", "%d, of which %d are to be evicted and %d are being deleted", len(r.Pods), going, leaving)
	for i, s := range r.Next {
		name := ""
		if i == 0 {
			name = "Next"
		}
		if s.At.IsZero() {
			line(name, "%s", s.Text)
		} else {
			line(name, "%s (%s): %s", stamp(s.At), r.in(s.At), s.Text)
		}
	}
}

// stamp is a time for people.
func stamp(t time.Time) string {
	if t.IsZero() {
		return "an unknown time"
	}
	return t.UTC().Format(time.RFC3339)
}

func (r *Report) ago(t time.Time) string {
	switch d := r.Time.Sub(t).Round(time.Second); {
	case t.IsZero():
		return "never"
	case d < 0:
		return fmt.Sprintf("%v ahead of this server's clock", -d)
	default:
		return d.String() + " ago"
	}
}

func (r *Report) since(t time.Time) string {
	if t.IsZero() {
		return "since an unknown time"
	}
	return fmt.Sprintf("since %s (%s)", stamp(t), r.ago(t))
}

func (r *Report) in(t time.Time) string {
	if d := t.Sub(r.Time).Round(time.Second); d > 0 {
		return "in " + d.String()
	}
	return "due"
}
