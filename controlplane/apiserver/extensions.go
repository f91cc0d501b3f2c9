// Custom resources: the kinds that CustomResourceDefinitions define, by the library that
// kube-apiserver serves them with.

package apiserver

import (
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	apiextensionsopenapi "k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/client-go/tools/cache"
)

// A foreign store holds kinds that package kinds does not know, as JSON under their group and
// name. Everything else of it, encryption and bounds included, is the backend's.
type foreign struct {
	*backend
	codec runtime.Codec
}

// GetRESTOptions implements generic.RESTOptionsGetter.
func (f foreign) GetRESTOptions(gr schema.GroupResource, _ runtime.Object) (generic.RESTOptions, error) {
	config := storagebackend.NewDefaultConfig(keyPrefix, f.codec)
	config.StorageObjectCountTracker = f.tracker
	return f.options(config.ForResource(gr), gr.Group+"/"+gr.Resource), nil
}

// definitionsSynced is the library's name of the wait for the definitions that there are,
// and of the signal that it is over.
const (
	definitionsSynced = "crd-informer-synced"
	definitionsSignal = "CRDInformerHasNotSynced"
)

// newExtensions makes the server of custom resources. It serves what nobody before it in
// the chain does, and answers that there is nothing else.
func (s *Server) newExtensions(p *parts) (*apiextensionsserver.CustomResourceDefinitions, error) {
	c, back := p.link(), p.back
	c.RESTOptionsGetter = foreign{back, apiextensionsserver.Codecs.LegacyCodec(apiextensionsv1.SchemeGroupVersion)}
	c.MergedResourceConfig = apiextensionsserver.DefaultAPIResourceConfigSource()
	c.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(apiextensionsopenapi.GetOpenAPIDefinitions, p.names)
	c.DisabledPostStartHooks.Insert(definitionsSynced)
	config := apiextensionsserver.Config{
		GenericConfig: &genericapiserver.RecommendedConfig{Config: c, SharedInformerFactory: p.shared},
		ExtraConfig: apiextensionsserver.ExtraConfig{
			CRDRESTOptionsGetter: foreign{back, unstructured.UnstructuredJSONScheme},
			MasterCount:          s.masters(),
			ServiceResolver:      s,
			AuthResolverWrapper:  s.toWebhooks,
		},
	}
	ext, err := config.Complete().New(genericapiserver.NewEmptyDelegate())
	if err != nil {
		return nil, fmt.Errorf("server of custom resources: %w", err)
	}
	if err := awaitDefinitions(ext); err != nil {
		ext.GenericAPIServer.Destroy()
		return nil, err
	}
	return ext, nil
}

// masters is how many servers there may be. With more than one the library lets others
// learn of a definition before it is called established.
func (s *Server) masters() int {
	if len(s.cfg.EtcdServers.Servers) > 0 {
		return 2
	}
	return 1
}

// awaitDefinitions has paths that nobody knows answered with 503 until the definitions are
// known. The library's own wait ends the process if the server stops before that.
func awaitDefinitions(ext *apiextensionsserver.CustomResourceDefinitions) error {
	known := make(chan struct{})
	ext.GenericAPIServer.MuxAndDiscoveryCompleteSignals()[definitionsSignal] = known
	definitions := ext.Informers.Apiextensions().V1().CustomResourceDefinitions().Informer()
	err := ext.GenericAPIServer.AddPostStartHook("hawser-"+definitionsSynced, func(c genericapiserver.PostStartHookContext) error {
		if cache.WaitForCacheSync(c.Done(), definitions.HasSynced) {
			close(known)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("server of custom resources: %w", err)
	}
	return nil
}
