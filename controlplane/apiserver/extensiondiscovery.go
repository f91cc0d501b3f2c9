// Discovery: how much an extension server may say of the kinds that it serves.

package apiserver

import (
	"errors"
	"log/slog"
	"net/http"
	"reflect"
	"unsafe"

	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregatorserver "k8s.io/kube-aggregator/pkg/apiserver"
)

// discoveryBytes bounds an extension server's list of its kinds, of which each takes some
// 400 bytes. Decoding can take 500 times as much memory: the list is made of empty objects.
const discoveryBytes = 1 << 20

// boundDiscovery has agg read at most discoveryBytes of a list of kinds. The server that is
// asked is a pod on some node; the library reads what it sends for five seconds, and has no
// option that bounds it. So the part of agg that asks is replaced in its unexported field.
func boundDiscovery(agg *aggregatorserver.APIAggregator, log *slog.Logger) error {
	field := reflect.ValueOf(agg).Elem().FieldByName("discoveryAggregationController")
	if !field.IsValid() || field.Type() != reflect.TypeFor[aggregatorserver.DiscoveryAggregationController]() {
		return errors.New("this version of the library keeps discovery elsewhere: what extension servers say would not be bounded")
	}
	part := (*aggregatorserver.DiscoveryAggregationController)(unsafe.Pointer(field.UnsafeAddr()))
	*part = boundedDiscovery{*part, log}
	return nil
}

// boundedDiscovery asks extension servers through handlers that end answers that are too
// long. The rest of such an answer is no JSON, and the server's kinds are listed as stale.
type boundedDiscovery struct {
	aggregatorserver.DiscoveryAggregationController
	log *slog.Logger
}

// AddAPIService implements aggregatorserver.DiscoveryAggregationController.
func (d boundedDiscovery) AddAPIService(svc *apiregistrationv1.APIService, h http.Handler) {
	log := d.log.With("apiservice", svc.Name)
	d.DiscoveryAggregationController.AddAPIService(svc, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.ServeHTTP(&boundedWriter{ResponseWriter: w, what: "list of its kinds", most: discoveryBytes, left: discoveryBytes, log: log}, r)
	}))
}

// A boundedWriter takes so many bytes of an answer and fails then.
type boundedWriter struct {
	http.ResponseWriter
	what       string // of an extension server
	most, left int
	log        *slog.Logger
}

var errTooLong = errors.New("the answer is too long")

// Write implements http.ResponseWriter.
func (w *boundedWriter) Write(b []byte) (int, error) {
	if len(b) > w.left {
		w.left = 0
		w.log.Warn("an extension server's "+w.what+" is too long and is not read on", "limit", w.most)
		return 0, errTooLong
	}
	w.left -= len(b)
	return w.ResponseWriter.Write(b)
}

// Unwrap is for http.ResponseController: each event of a watch is flushed.
func (w *boundedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
