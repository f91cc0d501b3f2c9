package kubeletapi

// Container logs.

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hawser-project/hawser/node/runtime"
	"github.com/hawser-project/hawser/node/runtime/crilog"
)

// containerHeader names the container whose log an answer is. Hawser's API server sends the ID back,
// as containerID, when it asks for a followed log once more. Its package kubelet has the names, too.
const containerHeader = "Hawser-Container-Id"

// logQuery is what the query of a request for logs says.
type logQuery struct {
	crilog.Options
	follow, previous bool
	containerID      string // of the attempt whose log is asked for; empty if the state decides
}

// parseLogQuery decodes the fields of a PodLogOptions. Errors are for the client.
func parseLogQuery(q url.Values, now time.Time) (logQuery, error) {
	var o logQuery
	var errs []error
	flag := func(key string) bool {
		v := q.Get(key)
		if v == "" {
			return false
		}
		b, err := strconv.ParseBool(v)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %q is neither true nor false", key, v))
		}
		return b
	}
	number := func(key string, least int64) *int64 {
		v := q.Get(key)
		if v == "" {
			return nil
		}
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil || n < least {
			errs = append(errs, fmt.Errorf("%s: %q is not a number of %d or more", key, v, least))
			return nil
		}
		return &n
	}
	o.follow, o.previous, o.Timestamps = flag("follow"), flag("previous"), flag("timestamps")
	o.containerID = q.Get("containerID")
	o.Tail = number("tailLines", 0)
	if n := number("limitBytes", 1); n != nil {
		o.LimitBytes = *n
	}
	seconds, at := number("sinceSeconds", 1), q.Get("sinceTime")
	switch {
	case seconds != nil && at != "":
		errs = append(errs, errors.New("sinceSeconds and sinceTime: at most one may be given"))
	case seconds != nil:
		o.Since = now.Add(-time.Duration(min(*seconds, int64(1<<33))) * time.Second)
	case at != "":
		t, err := time.Parse(time.RFC3339, at)
		if err != nil {
			errs = append(errs, fmt.Errorf("sinceTime: %q is not a time as in RFC 3339", at))
		}
		o.Since = t
	}
	switch stream := q.Get("stream"); strings.ToLower(stream) {
	case "", "all":
	case crilog.Stdout, crilog.Stderr:
		o.Stream = strings.ToLower(stream)
	default:
		errs = append(errs, fmt.Errorf("stream: %q is none of All, Stdout, Stderr", stream))
	}
	return o, errors.Join(errs...)
}

func (s *Server) containerLogs(w http.ResponseWriter, r *http.Request) {
	o, err := parseLogQuery(r.URL.Query(), time.Now())
	if err != nil {
		writeError(w, errorf(http.StatusUnprocessableEntity, "invalid request: %v", err))
		return
	}
	c, err := s.loggedContainer(r, &o)
	if err != nil {
		writeError(w, err)
		return
	}
	rc := http.NewResponseController(w)
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set(containerHeader, c.ID)
	ctx, cancel := context.WithCancel(r.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	if o.follow {
		ended := make(chan struct{})
		o.Follow = ended
		wg.Go(func() {
			defer close(ended)
			s.waitEnded(ctx, c.ID)
		})
	}
	out := &lazyWriter{w: w}
	err = crilog.Read(ctx, c.LogPath, o.Options, out, func() { _ = rc.Flush() })
	if errors.Is(err, fs.ErrNotExist) {
		code := http.StatusBadRequest
		if o.containerID != "" {
			code = http.StatusGone
		}
		err = errorf(code, "the log of container %q in pod %q is gone", c.Name, c.Pod.Name)
	}
	if err != nil && !out.started && ctx.Err() == nil {
		writeError(w, err)
	} else if err != nil {
		// The client has gone, this process is about to end, or the log cannot be
		// read: not ending the response properly is the only way left to say so.
		s.log.Debug("log cut short", "container", c.ID, "err", err)
		panic(http.ErrAbortHandler)
	}
}

// loggedContainer finds the container whose log is asked for: of the attempts of the named container of
// the named pod, whatever ID o has.
func (s *Server) loggedContainer(r *http.Request, o *logQuery) (runtime.ContainerStatus, error) {
	pod, err := s.pod(r)
	if err != nil {
		return runtime.ContainerStatus{}, err
	}
	name := r.PathValue("container")
	if !hasContainer(pod, name) {
		return runtime.ContainerStatus{}, errorf(http.StatusNotFound, "container %q not found in pod %q", name, pod.Name)
	}
	list, err := s.attempts(r.Context(), pod, name)
	if err != nil {
		return runtime.ContainerStatus{}, err
	}
	if o.containerID == "" {
		return logged(pod, name, o.previous, list)
	}
	i := slices.IndexFunc(list, func(c runtime.ContainerStatus) bool { return c.ID == o.containerID })
	if i < 0 {
		return runtime.ContainerStatus{}, errorf(http.StatusGone, "container %q in pod %q has no log of %q any more", name, pod.Name, o.containerID)
	}
	return list[i], nil
}

// lookAgain is how often a waiting request looks for itself, in case it missed a
// change.
const lookAgain = 5 * time.Second

// waitEnded returns when a container has ended or is no more, or ctx is done.
func (s *Server) waitEnded(ctx context.Context, id string) {
	t := time.NewTicker(lookAgain)
	defer t.Stop()
	for {
		change := s.change()
		if all, err := s.cfg.Runtime.Containers(ctx); err == nil && !isRunning(all, id) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-change:
		case <-t.C:
		}
	}
}

func isRunning(all []runtime.ContainerStatus, id string) bool {
	for _, c := range all {
		if c.ID == id {
			return c.State != runtime.Exited
		}
	}
	return false
}

// A lazyWriter knows whether the response has begun.
type lazyWriter struct {
	w       http.ResponseWriter
	started bool
}

func (l *lazyWriter) Write(b []byte) (int, error) {
	l.started = true
	return l.w.Write(b)
}
