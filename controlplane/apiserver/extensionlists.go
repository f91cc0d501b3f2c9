// Lists of objects that extension servers have, as far as controllers read them.

package apiserver

import (
	"log/slog"
	"net/http"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	apiregistration "k8s.io/kube-aggregator/pkg/client/listers/apiregistration/v1"
)

// foreignBytes bounds what a controller reads of one answer of an extension server. Decoding
// can take a hundred times as much memory: a list is made of empty objects.
const foreignBytes = 4 << 20

// foreignLists ends answers of extension servers to the controllers of this process that are
// too long: the garbage collector and others list all kinds there are, and read an answer
// whole. Answers to other users have no bound, since this process does not store them.
type foreignLists struct {
	services apiregistration.APIServiceLister // set before the first request
	log      *slog.Logger
}

// bound has next serve with that bound.
func (f *foreignLists) bound(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, ok := request.RequestInfoFrom(r.Context())
		if who, known := request.UserFrom(r.Context()); !ok || !known || who.GetName() != user.KubeControllerManager || !info.IsResourceRequest || info.Verb == "watch" {
			next.ServeHTTP(w, r)
			return
		}
		svc, err := f.services.Get(info.APIVersion + "." + info.APIGroup)
		if err != nil || svc.Spec.Service == nil {
			next.ServeHTTP(w, r)
			return
		}
		// A few compressed bytes can become any number. Without this the proxy decompresses.
		r.Header.Del("Accept-Encoding")
		next.ServeHTTP(&boundedWriter{ResponseWriter: w, what: "answer to a controller", most: foreignBytes, left: foreignBytes, log: f.log.With("apiservice", svc.Name)}, r)
	})
}
