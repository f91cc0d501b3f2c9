package loop

// Outage keeps a controller that cannot reach the API from saying so for every
// object it has.

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// An Outage tells the first failure to reach the API server from those that
// follow it. One is shared by all that a controller does. Its methods may be
// called from any goroutine.
type Outage struct {
	log *slog.Logger

	mu   sync.Mutex
	down bool // guarded by mu: an outage has begun and been told
}

// NewOutage returns an Outage that says on log when it is over; nil discards.
func NewOutage(log *slog.Logger) *Outage {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Outage{log: log}
}

// Note takes the outcome of a request and returns it: a nil error says that the server has
// answered, and must not stand for no request at all. If the server could not be
// reached, or could not serve, all outcomes but the first of the outage are made
// Quiet.
func (o *Outage) Note(err error) error {
	if errors.Is(err, context.Canceled) {
		return err // it was the controller that gave up
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	was := o.down
	o.down = Unreachable(err)
	switch {
	case was && o.down:
		return Quiet(err)
	case was:
		o.log.Info("the API server answers again")
	}
	return err
}

// Unreachable tells whether err, the outcome of a request, says nothing of what
// was asked for: the server could not be reached, or was in no state to serve.
// Whether it did what was asked is then not known.
func Unreachable(err error) bool {
	if err == nil {
		return false
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return true
	}
	code := status.Status().Code
	return code >= http.StatusInternalServerError || code == http.StatusTooManyRequests
}
