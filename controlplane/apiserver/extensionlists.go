// Lists and events of objects that extension servers have, as far as controllers read them.

package apiserver

import (
	"errors"
	"log/slog"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	apiregistration "k8s.io/kube-aggregator/pkg/client/listers/apiregistration/v1"
	"k8s.io/utils/lru"
)

// Bounds of what a controller reads of an extension server. Decoding can take a hundred times
// as much memory: a list is made of empty objects.
const (
	foreignBytes     = 4 << 20          // of one answer
	foreignListBytes = 8 * foreignBytes // of all pages of one list, and of all events after it
	foreignPages     = 200              // of one list, as many as the namespace controller reads
	foreignListsRead = 1024             // lists and watches that are read at a time
)

// foreignLists ends lists of extension servers to the controllers of this process that are
// too long: the garbage collector and others list all kinds there are, and keep a list whole.
// A watch ends after 4 MiB, so that no event is larger, and goes on with the next one. After
// 32 MiB the controller lists again, and so keeps what the list has: without that, events of
// ever new objects would fill its memory. Answers to other users have no bound, since this
// process does not store them.
type foreignLists struct {
	services   apiregistration.APIServiceLister // set before the first request
	serializer runtime.NegotiatedSerializer
	log        *slog.Logger
	left       *lru.Cache // bytes (int) that are left of a list or of the events after it, by foreignList
}

// A foreignList is a list that a controller reads page by page, one page after another, or
// the events after it. Each controller has a user agent of its own.
type foreignList struct {
	agent, path string
	events      bool
}

func newForeignLists(serializer runtime.NegotiatedSerializer, log *slog.Logger) *foreignLists {
	return &foreignLists{serializer: serializer, log: log, left: lru.New(foreignListsRead)}
}

// bound has next serve with those bounds.
func (f *foreignLists) bound(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		svc, info := f.foreign(r)
		switch {
		case svc == nil:
			next.ServeHTTP(w, r)
		case info.Verb == "watch" && r.FormValue("sendInitialEvents") != "true":
			f.watch(w, r, svc, next)
		case info.Verb == "watch":
			// A list that comes as a watch has no end that is seen from here. Whoever gets this
			// answer lists.
			f.refuse(w, r, apierrors.NewInvalid(schema.GroupKind{Group: info.APIGroup, Kind: "ListOptions"}, "",
				field.ErrorList{field.Forbidden(field.NewPath("sendInitialEvents"), "a controller does not read lists of extension servers so")}))
		case info.Verb == "list":
			f.list(w, r, info, svc, next)
		default:
			f.answer(w, r, svc, foreignBytes, next)
		}
	})
}

// foreign returns the extension server that a controller's request goes to, or nil.
func (f *foreignLists) foreign(r *http.Request) (*apiregistrationv1.APIService, *request.RequestInfo) {
	info, ok := request.RequestInfoFrom(r.Context())
	if who, known := request.UserFrom(r.Context()); !ok || !known || who.GetName() != user.KubeControllerManager || !info.IsResourceRequest {
		return nil, info
	}
	svc, err := f.services.Get(info.APIVersion + "." + info.APIGroup)
	if err != nil || svc.Spec.Service == nil {
		return nil, info
	}
	return svc, info
}

// list has next serve a page, unless the pages before it were too many or too long.
func (f *foreignLists) list(w http.ResponseWriter, r *http.Request, info *request.RequestInfo, svc *apiregistrationv1.APIService, next http.Handler) {
	key, left := foreignList{r.UserAgent(), r.URL.Path, false}, foreignListBytes
	if r.FormValue("continue") != "" {
		v, _ := f.left.Get(key)
		left, _ = v.(int) // 0 if nothing is known of the pages before
	} else {
		f.left.Remove(foreignList{r.UserAgent(), r.URL.Path, true})
	}
	if left <= 0 {
		f.log.Warn("an extension server's list is too long for a controller and is not read on", "apiservice", svc.Name, "resource", info.Resource, "bytes", foreignListBytes, "pages", foreignPages)
		f.refuse(w, r, apierrors.NewInternalError(errors.New("the list of the extension server is too long for a controller")))
		return
	}
	f.left.Add(key, 0) // unless this page ends well
	sent := f.answer(w, r, svc, min(left, foreignBytes), next)
	f.left.Add(key, left-max(sent, foreignListBytes/foreignPages+1))
}

// watch has next serve events, unless there were too many since the last list.
func (f *foreignLists) watch(w http.ResponseWriter, r *http.Request, svc *apiregistrationv1.APIService, next http.Handler) {
	key, left := foreignList{r.UserAgent(), r.URL.Path, true}, foreignListBytes
	if v, known := f.left.Get(key); known {
		left, _ = v.(int)
	}
	if left <= 0 {
		f.log.Warn("an extension server has sent a controller many events, which lists again", "apiservice", svc.Name, "path", r.URL.Path, "bytes", foreignListBytes)
		f.refuse(w, r, apierrors.NewResourceExpired("the extension server has sent many events since the last list"))
		return
	}
	most := min(left, foreignBytes)
	b := f.bounded(w, r, svc, most)
	defer func() { f.left.Add(key, left-(most-b.left)) }() // the proxy may panic to end an answer
	next.ServeHTTP(b, r)
}

// answer has next serve at most so many bytes, and returns how many it was.
func (f *foreignLists) answer(w http.ResponseWriter, r *http.Request, svc *apiregistrationv1.APIService, most int, next http.Handler) int {
	b := f.bounded(w, r, svc, most)
	next.ServeHTTP(b, r)
	return most - b.left
}

func (f *foreignLists) bounded(w http.ResponseWriter, r *http.Request, svc *apiregistrationv1.APIService, most int) *boundedWriter {
	// A few compressed bytes can become any number. Without this the proxy decompresses.
	r.Header.Del("Accept-Encoding")
	return &boundedWriter{ResponseWriter: w, what: "answer to a controller", most: most, left: most, log: f.log.With("apiservice", svc.Name)}
}

func (f *foreignLists) refuse(w http.ResponseWriter, r *http.Request, err error) {
	responsewriters.ErrorNegotiated(err, f.serializer, metav1.Unversioned, w, r)
}
