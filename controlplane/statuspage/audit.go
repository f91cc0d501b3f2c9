// The latest lines of the audit log.

package statuspage

import (
	"slices"
	"strings"
	"sync"
	"time"

	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/user"
)

// maxAudit is how many lines are kept.
const maxAudit = 200

// A line is one request: who wanted what, and what the answer was. It has nothing of what
// was sent, and no parameters.
type line struct {
	number uint64
	asked  time.Time // when a request was received that goes on; zero once it has ended
	At     int64     `json:"at"`
	User   string    `json:"user"`
	Verb   string    `json:"verb"`
	What   string    `json:"what"`
	Code   int32     `json:"code"`
}

// A ring is an audit.Backend that keeps the latest lines.
type ring struct {
	mu    sync.Mutex // guards the following
	last  uint64     // number of the latest
	lines [maxAudit]line
}

// Audit takes what is written to the audit log.
func (p *Page) Audit() audit.Backend { return &p.audit }

// components are how the names of users begin whose requests are not shown: those of
// nodes and of the control plane itself, whose parts in the cluster have service accounts
// of kube-system, would leave no place for those of people.
var components = []string{"system:node:", "system:kube-", "system:apiserver", "system:serviceaccount:kube-system:"}

// ProcessEvents implements audit.Sink.
func (r *ring) ProcessEvents(events ...*auditinternal.Event) bool {
	for _, e := range events {
		if e.Stage != auditinternal.StageRequestReceived {
			r.add(e)
		}
	}
	return true
}

func (r *ring) add(e *auditinternal.Event) {
	if e.User.Username == user.Anonymous || e.User.Username == "" {
		return // health probes, and what strangers ask who would leave no place for others
	}
	for _, c := range components {
		if strings.HasPrefix(e.User.Username, c) {
			return
		}
	}
	l := line{At: e.StageTimestamp.Unix(), User: clip(e.User.Username, maxWord), Verb: clip(e.Verb, maxWord), What: clip(what(e), maxText)}
	if e.ImpersonatedUser != nil {
		l.User += " as " + clip(e.ImpersonatedUser.Username, maxWord)
	}
	if e.ResponseStatus != nil {
		l.Code = e.ResponseStatus.Code
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	// A request that goes on is told of when it is answered, and again at its end. Its ID is no
	// help: clients may choose it.
	if e.Stage == auditinternal.StageResponseStarted {
		l.asked = e.RequestReceivedTimestamp.Time
	} else if i := slices.IndexFunc(r.lines[:], func(o line) bool {
		return !o.asked.IsZero() && o.asked.Equal(e.RequestReceivedTimestamp.Time) && o.User == l.User && o.Verb == l.Verb && o.What == l.What
	}); i >= 0 {
		r.lines[i].asked = time.Time{}
		return
	}
	r.last++
	l.number = r.last
	r.lines[r.last%maxAudit] = l
}

// what is the object of a request, or its path.
func what(e *auditinternal.Event) string {
	o := e.ObjectRef
	if o == nil {
		path, _, _ := strings.Cut(e.RequestURI, "?")
		return path
	}
	name := o.Resource
	if o.Subresource != "" {
		name += "/" + o.Subresource
	}
	if o.APIGroup != "" {
		name += "." + o.APIGroup
	}
	for _, part := range []string{o.Namespace, o.Name} {
		if part != "" {
			name += " " + part
		}
	}
	return name
}

// since returns the lines after number, oldest first, and the number of the latest.
func (r *ring) since(number uint64) ([]line, uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last > maxAudit {
		number = max(number, r.last-maxAudit)
	}
	var out []line
	for number < r.last {
		number++
		out = append(out, r.lines[number%maxAudit])
	}
	return out, r.last
}

// Run implements audit.Backend.
func (*ring) Run(<-chan struct{}) error { return nil }

// Shutdown implements audit.Backend.
func (*ring) Shutdown() {}

// String implements audit.Backend.
func (*ring) String() string { return "status-page" }
