package loop

// How often the log tells that the API server refuses a controller something.

import (
	"errors"
	"maps"
	"net/url"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

const (
	// refusalInterval is the time between two lines about one cause.
	refusalInterval = time.Minute
	// maxCauses is how many causes may have a line in that time.
	maxCauses = 32
	// unauthorized is the cause of whatever is refused because of who asks. It always has a line.
	unauthorized = "unauthorized"
)

// refusals keep the log of a queue from having a line for each object where all fail for
// one cause. The zero value has told none.
type refusals struct {
	mu     sync.Mutex           // guards the following
	told   map[string]time.Time // by cause
	others int                  // failures since the last line that have none
}

// tell says whether err is to be in the log now, and how many others were not since the
// last line.
func (r *refusals) tell(err error) (others int, now bool) {
	cause := refusal(err)
	if cause == "" {
		return 0, true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	t := time.Now()
	maps.DeleteFunc(r.told, func(_ string, at time.Time) bool { return t.Sub(at) >= refusalInterval })
	if _, known := r.told[cause]; known || len(r.told) >= maxCauses && cause != unauthorized {
		r.others++
		return 0, false
	}
	if r.told == nil {
		r.told = make(map[string]time.Time)
	}
	r.told[cause] = t
	others, r.others = r.others, 0
	return others, true
}

// refusal is what an error has in common with those of other objects, if the API server
// would have none of the request or could not be asked. Empty means that it is the
// object's own.
func refusal(err error) string {
	var asked *url.Error
	switch {
	case apierrors.IsUnauthorized(err):
		return unauthorized
	case apierrors.IsForbidden(err):
		// The object's name comes first. Admission refuses objects for what is in them or their
		// namespace, so its reasons are the object's own.
		if _, why, _ := strings.Cut(err.Error(), " is forbidden: "); strings.HasPrefix(why, `User "`) {
			return why
		}
	case errors.As(err, &asked):
		return asked.Err.Error()
	}
	return ""
}
