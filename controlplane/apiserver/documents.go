// The API's descriptions of itself, made when somebody asks for them.

package apiserver

import (
	"net/http"
	"sync"

	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/apiserver/pkg/server/routes"
)

// serveDocuments serves the OpenAPI documents of srv, whose API groups must all be
// installed. The library would make them at the start; they are a third of all
// the memory that an idle server holds, and most servers of a small site are
// asked for one version of them at most.
func serveDocuments(srv *genericapiserver.GenericAPIServer, config *genericapiserver.Config) {
	served := srv.Handler.NonGoRestfulMux
	v2 := onRequest(func(m *mux.PathRecorderMux) {
		routes.OpenAPI{Config: config.OpenAPIConfig}.InstallV2(srv.Handler.GoRestfulContainer, m)
	})
	v3 := onRequest(func(m *mux.PathRecorderMux) {
		routes.OpenAPI{V3Config: config.OpenAPIV3Config}.InstallV3(srv.Handler.GoRestfulContainer, m)
	})
	served.Handle("/openapi/v2", v2)
	served.Handle("/openapi/v3", v3)
	served.HandlePrefix("/openapi/v3/", v3)
}

// onRequest is a handler that install makes at the first request. Requests that
// come meanwhile wait for it.
func onRequest(install func(*mux.PathRecorderMux)) http.Handler {
	installed := sync.OnceValue(func() http.Handler {
		m := mux.NewPathRecorderMux("openapi")
		install(m)
		return m
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { installed().ServeHTTP(w, r) })
}
