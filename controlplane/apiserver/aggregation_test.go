package apiserver

// Tests of the first server of the chain.

import (
	"testing"

	"k8s.io/client-go/informers"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/transport"
	aggregatorfake "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/fake"
	aggregatorinformers "k8s.io/kube-aggregator/pkg/client/informers/externalversions"
	availabilitymetrics "k8s.io/kube-aggregator/pkg/controllers/status/metrics"
	remoteavailability "k8s.io/kube-aggregator/pkg/controllers/status/remote"
)

// TestExtensionServerOfAnEndingServer: the first APIService that names a service may come when the
// server ends and its informers have ended. The process goes on to its end.
func TestExtensionServerOfAnEndingServer(t *testing.T) {
	client := aggregatorfake.NewClientset()
	f := aggregatorinformers.NewSharedInformerFactory(client, 0)
	services := f.Apiregistration().V1().APIServices()
	ended := make(chan struct{})
	close(ended)
	services.Informer().Run(ended)
	if !services.Informer().IsStopped() {
		t.Fatal("the informer goes on")
	}
	of := informers.NewSharedInformerFactory(kubefake.NewClientset(), 0)
	remote, err := remoteavailability.New(endingServices{services}, of.Core().V1().Services(), of.Discovery().V1().EndpointSlices(),
		client.ApiregistrationV1(), &transport.DialHolder{}, func() (cert, key []byte) { return nil, nil }, serviceNames{}, availabilitymetrics.New())
	if err != nil {
		t.Fatal(err)
	}
	remote.Run(availabilityWorkers, ended)
}
