// The API's descriptions of itself, made when somebody asks for them.

package apiserver

import (
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/emicklei/go-restful/v3"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	definitions "k8s.io/apiextensions-apiserver/pkg/client/listers/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/controller/openapi/builder"
	apiextensionsopenapi "k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/apiserver/pkg/server/routes"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregatoropenapi "k8s.io/kube-aggregator/pkg/generated/openapi"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/handler"
	"k8s.io/kube-openapi/pkg/handler3"
	"k8s.io/kube-openapi/pkg/spec3"
	swagger "k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/hawser-project/hawser/controlplane/apiserver/openapi"
)

// definitionNames names the kinds in the documents. They come from a scheme that has only
// what is served, or every kind would be listed as internal too.
func definitionNames() (*openapinamer.DefinitionNamer, error) {
	s, err := versionedScheme()
	if err != nil {
		return nil, err
	}
	if err := apiextensionsv1.AddToScheme(s); err != nil {
		return nil, fmt.Errorf("register %s: %w", apiextensionsv1.SchemeGroupVersion, err)
	}
	if err := apiregistrationv1.AddToScheme(s); err != nil {
		return nil, fmt.Errorf("register %s: %w", apiregistrationv1.SchemeGroupVersion, err)
	}
	return openapinamer.NewDefinitionNamer(s), nil
}

// described are the definitions of everything that the chain serves.
func described(ref common.ReferenceCallback) map[string]common.OpenAPIDefinition {
	all := aggregatoropenapi.GetOpenAPIDefinitions(ref)
	maps.Copy(all, apiextensionsopenapi.GetOpenAPIDefinitions(ref))
	maps.Copy(all, openapi.GetOpenAPIDefinitions(ref))
	return all
}

// documents are the OpenAPI documents of the chain.
type documents struct {
	paths       *restful.Container // of all servers of the chain
	v2          common.Config
	v3          common.OpenAPIV3Config
	definitions definitions.CustomResourceDefinitionLister
	log         *slog.Logger

	mu     sync.Mutex // guards the following
	static *swagger.Swagger
	second *handler.OpenAPIService
	have2  string
	third  *handler3.OpenAPIService
	have3  map[schema.GroupVersion]string
}

// serveDocuments serves the OpenAPI documents of the chain, whose API groups must all be
// installed. The library would make them at the start; they are a third of all
// the memory that an idle server holds, and most servers of a small site are
// asked for one version of them at most. What definitions say is added at the request that
// comes after they have changed.
func (c *chain) serveDocuments(config *genericapiserver.Config, log *slog.Logger) {
	first := c.aggregator.GenericAPIServer
	d := &documents{
		paths: containerOf(c.builtin, c.extensions.GenericAPIServer, first), v2: *config.OpenAPIConfig, v3: *config.OpenAPIV3Config,
		definitions: c.extensions.Informers.Apiextensions().V1().CustomResourceDefinitions().Lister(),
		log:         log, have3: make(map[schema.GroupVersion]string),
	}
	d.v2.GetDefinitions, d.v2.Definitions = described, nil
	d.v3.GetDefinitions, d.v3.Definitions = described, nil
	v2, v3 := d.onRequest(d.serveV2), c.elsewhere.beside(d.onRequest(d.serveV3))
	served := first.Handler.NonGoRestfulMux
	served.Handle("/openapi/v2", v2)
	served.Handle("/openapi/v3", v3)
	served.HandlePrefix("/openapi/v3/", v3)
}

// containerOf has what servers serve, each path once.
func containerOf(servers ...*genericapiserver.GenericAPIServer) *restful.Container {
	all, seen := restful.NewContainer(), make(map[string]bool)
	for _, s := range servers {
		for _, ws := range s.Handler.GoRestfulContainer.RegisteredWebServices() {
			if !seen[ws.RootPath()] {
				seen[ws.RootPath()] = true
				all.Add(ws)
			}
		}
	}
	return all
}

// onRequest is a handler that install makes at the first request, and that renew, which
// install returns, brings up to date at each. Requests that come meanwhile wait for it.
func (d *documents) onRequest(install func(*mux.PathRecorderMux) (renew func(all []*apiextensionsv1.CustomResourceDefinition))) http.Handler {
	m := mux.NewPathRecorderMux("openapi")
	renew := sync.OnceValue(func() func([]*apiextensionsv1.CustomResourceDefinition) { return install(m) })
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d.mu.Lock()
		renew()(d.established())
		d.mu.Unlock()
		m.ServeHTTP(w, r)
	})
}

// established are the definitions whose kinds are served, sorted by name.
func (d *documents) established() []*apiextensionsv1.CustomResourceDefinition {
	all, err := d.definitions.List(labels.Everything())
	if err != nil {
		return nil // a lister of a cache has no errors
	}
	all = slices.DeleteFunc(slices.Clone(all), func(c *apiextensionsv1.CustomResourceDefinition) bool {
		return !apihelpers.IsCRDConditionTrue(c, apiextensionsv1.Established)
	})
	slices.SortFunc(all, func(a, b *apiextensionsv1.CustomResourceDefinition) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// sign tells states of a definition apart.
func sign(c *apiextensionsv1.CustomResourceDefinition) string {
	return c.Name + "@" + string(c.UID) + "/" + c.ResourceVersion + " "
}

// serveV2 serves all in one document.
func (d *documents) serveV2(m *mux.PathRecorderMux) func([]*apiextensionsv1.CustomResourceDefinition) {
	d.second, d.static = routes.OpenAPI{Config: &d.v2}.InstallV2(d.paths, m)
	return func(all []*apiextensionsv1.CustomResourceDefinition) {
		var want strings.Builder
		for _, c := range all {
			want.WriteString(sign(c))
		}
		if want.String() == d.have2 {
			return
		}
		var parts []*swagger.Swagger
		for _, c := range all {
			for _, v := range c.Spec.Versions {
				if !v.Served {
					continue
				}
				part, err := builder.BuildOpenAPIV2(c, v.Name, builder.Options{V2: true, IncludeSelectableFields: true})
				if err != nil {
					d.log.Warn("a definition is left out of the OpenAPI document", "definition", c.Name, "version", v.Name, "err", err)
					continue
				}
				parts = append(parts, part)
			}
		}
		merged, err := builder.MergeSpecs(d.static, parts...)
		if err == nil {
			err = d.second.UpdateSpec(merged)
		}
		if err != nil {
			d.log.Warn("definitions are left out of the OpenAPI document", "err", err)
			return
		}
		d.have2 = want.String()
	}
}

// serveV3 serves a document for each group version.
func (d *documents) serveV3(m *mux.PathRecorderMux) func([]*apiextensionsv1.CustomResourceDefinition) {
	d.third = routes.OpenAPI{V3Config: &d.v3}.InstallV3(d.paths, m)
	own := make(map[string]bool)
	for _, ws := range d.paths.RegisteredWebServices() {
		own[strings.TrimPrefix(ws.RootPath(), "/")] = true
	}
	return func(all []*apiextensionsv1.CustomResourceDefinition) {
		want, by := make(map[schema.GroupVersion]string), make(map[schema.GroupVersion][]*apiextensionsv1.CustomResourceDefinition)
		for _, c := range all {
			for _, v := range c.Spec.Versions {
				gv := schema.GroupVersion{Group: c.Spec.Group, Version: v.Name}
				if v.Served && !own[documentOf(gv)] {
					want[gv] += sign(c)
					by[gv] = append(by[gv], c)
				}
			}
		}
		for gv := range d.have3 {
			if _, ok := want[gv]; !ok {
				d.third.DeleteGroupVersion(documentOf(gv))
				delete(d.have3, gv)
			}
		}
		for gv, state := range want {
			if d.have3[gv] != state {
				d.describe(gv, by[gv])
				d.have3[gv] = state
			}
		}
	}
}

// documentOf is the name of the document of gv.
func documentOf(gv schema.GroupVersion) string { return "apis/" + gv.String() }

// describe makes the document of gv anew.
func (d *documents) describe(gv schema.GroupVersion, all []*apiextensionsv1.CustomResourceDefinition) {
	var parts []*spec3.OpenAPI
	for _, c := range all {
		part, err := builder.BuildOpenAPIV3(c, gv.Version, builder.Options{IncludeSelectableFields: true})
		if err != nil {
			d.log.Warn("a definition is left out of the OpenAPI document", "definition", c.Name, "version", gv.Version, "err", err)
			continue
		}
		parts = append(parts, part)
	}
	merged, err := builder.MergeSpecsV3(parts...)
	if err != nil {
		d.log.Warn("definitions are left out of the OpenAPI document", "version", gv.String(), "err", err)
		return
	}
	d.third.UpdateGroupVersion(documentOf(gv), merged)
}
