package kubelet

// pods/log: a container's output, streamed as the kubelet sends it.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	genericrest "k8s.io/apiserver/pkg/registry/generic/rest"
	"k8s.io/apiserver/pkg/registry/rest"
)

const (
	// containerHeader is of the answer of Hawser's own kubelet: the ID of the container whose log
	// it is. containerParam asks such a kubelet for the log of that container. Package kubeletapi
	// of node has them, too.
	containerHeader = "Hawser-Container-Id"
	containerParam  = "containerID"
	// maxContainerID bounds an ID that is believed.
	maxContainerID = 128
)

type logREST struct{ *backend }

var (
	_ rest.GetterWithOptions = (*logREST)(nil)
	_ rest.StorageMetadata   = (*logREST)(nil)
)

func (*logREST) New() runtime.Object { return &corev1.Pod{} }

func (*logREST) Destroy() {}

func (*logREST) ProducesMIMETypes(string) []string { return []string{"text/plain"} }

func (*logREST) ProducesObject(string) any { return "" }

func (*logREST) NewGetOptions() (runtime.Object, bool, string) {
	return &corev1.PodLogOptions{}, false, ""
}

// Get returns a streamer of the log; the kubelet is asked when it is read.
func (r *logREST) Get(ctx context.Context, name string, options runtime.Object) (runtime.Object, error) {
	opts, ok := options.(*corev1.PodLogOptions)
	if !ok {
		return nil, fmt.Errorf("pods/log: unexpected options %T", options)
	}
	if errs := validateLogOptions(opts); len(errs) > 0 {
		return nil, apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("PodLogOptions").GroupKind(), name, errs)
	}
	pod, err := r.Pods(ctx, name)
	if err != nil {
		return nil, err
	}
	c, err := container(pod, opts.Container)
	if err != nil {
		return nil, err
	}
	s := &logStreamer{LocationStreamer: genericrest.LocationStreamer{
		ContentType:     "text/plain",
		Flush:           opts.Follow,
		Transport:       r.kubelet,
		RedirectChecker: genericrest.PreventRedirects,
		ResponseChecker: genericrest.NewGenericHttpResponseChecker(corev1.Resource("pods/log"), name),
	}}
	if opts.InsecureSkipTLSVerifyBackend {
		s.Transport = r.insecure
	}
	if pod.Spec.NodeName == "" {
		return s, nil // nothing has been written yet: an empty log, not an error
	}
	node, err := r.Nodes(ctx, pod.Spec.NodeName)
	if err != nil {
		return nil, err
	}
	query := logQuery(opts)
	if goesOn(opts, node) {
		s.follow, s.stamps, s.limit = r.remains(pod), opts.Timestamps, opts.LimitBytes
		query.Set("timestamps", "true")
		query.Del("limitBytes") // the kubelet would count the times, and what it sends again
	}
	s.Location, err = r.kubeletURL(ctx, pod.Spec.NodeName, []string{"containerLogs", pod.Namespace, pod.Name, c}, query)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// remains says whether pod is still there.
func (b *backend) remains(pod *corev1.Pod) func(context.Context) bool {
	return func(ctx context.Context) bool {
		now, err := b.Pods(ctx, pod.Name)
		return !apierrors.IsNotFound(err) && (err != nil || now.UID == pod.UID)
	}
}

// logStreamer is a LocationStreamer whose failures to reach the node are
// proper Statuses.
type logStreamer struct {
	genericrest.LocationStreamer

	// follow is not nil if the log is to outlive sessions: it says whether the pod is still
	// there. Times are asked for then, and passed on if stamps is set. No more than limit bytes
	// are passed on, if that is not nil.
	follow func(context.Context) bool
	stamps bool
	limit  *int64
}

func (s *logStreamer) DeepCopyObject() runtime.Object {
	c := *s
	return &c
}

// InputStream opens the log. It ends when the kubelet's answer does, or with
// ctx, that is when the client goes.
func (s *logStreamer) InputStream(ctx context.Context, apiVersion, accept string) (io.ReadCloser, bool, string, error) {
	asked := s.LocationStreamer
	of := containerOf{RoundTripper: s.Transport}
	asked.Transport = &of
	body, flush, contentType, err := asked.InputStream(ctx, apiVersion, accept)
	if err != nil {
		if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
			return nil, false, "", apierrors.NewTimeoutError("the client went away", 0)
		}
		return nil, false, "", statusError(err)
	}
	if body == nil {
		return nil, flush, contentType, nil
	}
	if s.follow != nil {
		query := s.Location.Query()
		if of.id != "" {
			query.Set(containerParam, of.id)
		}
		body = newFollowedLog(ctx, query, s.stamps, body, s.again)
		if s.limit != nil {
			body = limitedLog{io.LimitReader(body, *s.limit), body}
		}
	}
	return &cutLog{body: body, ctx: ctx}, flush, contentType, nil
}

// A containerOf transport notes the ID of the container whose log the answer is; empty if the kubelet
// names none.
type containerOf struct {
	http.RoundTripper

	id string
}

func (t *containerOf) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := t.RoundTripper.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	if t.id = resp.Header.Get(containerHeader); len(t.id) > maxContainerID {
		t.id = ""
	}
	return resp, nil
}

// again asks for the log once more. The time until it is answered is bounded. The error is
// errLineGone if the container that query names has no log any more.
func (s *logStreamer) again(ctx context.Context, query url.Values) (io.ReadCloser, error) {
	if !s.follow(ctx) {
		return nil, errPodGone
	}
	other, location := s.LocationStreamer, *s.Location
	location.RawQuery = query.Encode()
	of := containerOf{RoundTripper: s.Transport}
	other.Location, other.Transport = &location, &of
	ctx, cancel := context.WithCancel(ctx)
	late := time.AfterFunc(followAgainAnswer, cancel)
	body, _, _, err := other.InputStream(ctx, "", "")
	inTime := late.Stop()
	wanted := query.Get(containerParam)
	switch {
	case wanted != "" && (apierrors.IsGone(err) || err == nil && of.id != "" && of.id != wanted):
		err = errors.Join(errLineGone, err)
	case err == nil && !inTime:
		err = context.DeadlineExceeded
	}
	if err != nil {
		cancel()
		if body != nil {
			_ = body.Close()
		}
		return nil, err
	}
	return &cancelledLog{body, cancel}, nil
}

// A limitedLog ends after a number of bytes.
type limitedLog struct {
	io.Reader
	io.Closer
}

// A cancelledLog is the body of a request that has a context of its own.
type cancelledLog struct {
	io.ReadCloser

	cancel context.CancelFunc
}

func (l *cancelledLog) Close() error {
	l.cancel()
	return l.ReadCloser.Close()
}

// A cutLog is the body of a log that must not look complete when it is not.
// Whoever copies it to the client ends the answer in good order whatever the
// error, so a log that breaks off takes the answer with it.
type cutLog struct {
	body io.ReadCloser
	ctx  context.Context //nolint:containedctx // of the request whose answer this is
}

func (l *cutLog) Read(p []byte) (int, error) {
	n, err := l.body.Read(p)
	switch {
	case err == nil, errors.Is(err, io.EOF), l.ctx.Err() != nil:
		return n, err
	case n > 0:
		return n, nil // the error will be there again
	default:
		panic(http.ErrAbortHandler)
	}
}

func (l *cutLog) Close() error { return l.body.Close() }

func validateLogOptions(o *corev1.PodLogOptions) field.ErrorList {
	var errs field.ErrorList
	if o.TailLines != nil && *o.TailLines < 0 {
		errs = append(errs, field.Invalid(field.NewPath("tailLines"), *o.TailLines, "must be greater than or equal to 0"))
	}
	if o.LimitBytes != nil && *o.LimitBytes < 1 {
		errs = append(errs, field.Invalid(field.NewPath("limitBytes"), *o.LimitBytes, "must be greater than 0"))
	}
	switch {
	case o.SinceSeconds != nil && o.SinceTime != nil:
		errs = append(errs, field.Forbidden(field.NewPath(""), "at most one of `sinceTime` or `sinceSeconds` may be specified"))
	case o.SinceSeconds != nil && *o.SinceSeconds < 1:
		errs = append(errs, field.Invalid(field.NewPath("sinceSeconds"), *o.SinceSeconds, "must be greater than 0"))
	}
	return append(errs, validateLogStream(o)...)
}

func validateLogStream(o *corev1.PodLogOptions) field.ErrorList {
	if o.Stream == nil {
		return nil
	}
	switch *o.Stream {
	case corev1.LogStreamAll:
	case corev1.LogStreamStdout, corev1.LogStreamStderr:
		if o.TailLines != nil {
			return field.ErrorList{field.Forbidden(field.NewPath(""),
				"`tailLines` and specific `stream` are mutually exclusive for now")}
		}
	default:
		return field.ErrorList{field.NotSupported(field.NewPath("stream"), *o.Stream,
			[]string{corev1.LogStreamAll, corev1.LogStreamStdout, corev1.LogStreamStderr})}
	}
	return nil
}

// logQuery says to the kubelet what was asked of us.
func logQuery(o *corev1.PodLogOptions) url.Values {
	q := url.Values{}
	flag := func(key string, on bool) {
		if on {
			q.Set(key, "true")
		}
	}
	number := func(key string, n *int64) {
		if n != nil {
			q.Set(key, strconv.FormatInt(*n, 10))
		}
	}
	flag("follow", o.Follow)
	flag("previous", o.Previous)
	flag("timestamps", o.Timestamps)
	number("sinceSeconds", o.SinceSeconds)
	number("tailLines", o.TailLines)
	number("limitBytes", o.LimitBytes)
	if o.SinceTime != nil {
		q.Set("sinceTime", o.SinceTime.Format(time.RFC3339))
	}
	if o.Stream != nil && *o.Stream != corev1.LogStreamAll {
		q.Set("stream", *o.Stream)
	}
	return q
}
