// What the runtime class of a pod adds to it.

package admission

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	nodelisters "k8s.io/client-go/listers/node/v1"
)

// RuntimeClass gives a pod the overhead of its runtime class, and what the class says of
// scheduling: the node labels are required with the pod's own, the tolerations are added. It
// refuses a pod of a class that does not exist, with an overhead that is not its class's, or
// with other values for the class's node labels (KEP-585, KEP-688).
func RuntimeClass() admission.Interface {
	c := &runtimeClass{}
	c.pods = onPods(c.merge, admission.Create)
	return c
}

type runtimeClass struct {
	*pods
	client  kubernetes.Interface
	classes nodelisters.RuntimeClassLister
}

// SetExternalKubeClientSet and SetExternalKubeInformerFactory are called by the server when
// it makes the chain.
func (c *runtimeClass) SetExternalKubeClientSet(client kubernetes.Interface) { c.client = client }

func (c *runtimeClass) SetExternalKubeInformerFactory(f informers.SharedInformerFactory) {
	classes := f.Node().V1().RuntimeClasses()
	c.classes = classes.Lister()
	c.SetReadyFunc(classes.Informer().HasSynced)
}

func (c *runtimeClass) ValidateInitialization() error {
	if c.client == nil || c.classes == nil {
		return errors.New("runtime class: no client")
	}
	return nil
}

func (c *runtimeClass) merge(ctx context.Context, a admission.Attributes, pod *corev1.Pod) error {
	refuse := func(format string, args ...any) error { return admission.NewForbidden(a, fmt.Errorf(format, args...)) }
	if pod.Spec.RuntimeClassName == nil {
		if len(pod.Spec.Overhead) > 0 {
			return refuse("pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead")
		}
		return nil
	}
	if !c.WaitForReady() {
		return admission.NewForbidden(a, errors.New("not yet ready to handle request"))
	}
	class, err := c.classOf(ctx, *pod.Spec.RuntimeClassName)
	if apierrors.IsNotFound(err) {
		return refuse("pod rejected: RuntimeClass %q not found", *pod.Spec.RuntimeClassName)
	}
	if err != nil {
		return fault("runtime class "+*pod.Spec.RuntimeClassName, err)
	}
	var overhead corev1.ResourceList
	if class.Overhead != nil {
		overhead = class.Overhead.PodFixed
	}
	if len(pod.Spec.Overhead) > 0 && !equality.Semantic.DeepEqual(pod.Spec.Overhead, overhead) {
		return refuse("pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead")
	}
	pod.Spec.Overhead = overhead.DeepCopy()
	if class.Scheduling == nil {
		return nil
	}
	for key, value := range class.Scheduling.NodeSelector {
		if own, ok := pod.Spec.NodeSelector[key]; ok && own != value {
			return refuse("conflict: runtimeClass.scheduling.nodeSelector[%s] = %s; pod.spec.nodeSelector[%s] = %s", key, value, key, own)
		}
	}
	place(pod, class.Scheduling)
	return nil
}

// place adds what a class says of scheduling.
func place(pod *corev1.Pod, s *nodev1.Scheduling) {
	if pod.Spec.NodeSelector == nil {
		pod.Spec.NodeSelector = maps.Clone(s.NodeSelector)
	} else {
		maps.Copy(pod.Spec.NodeSelector, s.NodeSelector)
	}
	for _, t := range s.Tolerations {
		if !slices.ContainsFunc(pod.Spec.Tolerations, func(own corev1.Toleration) bool { return equality.Semantic.DeepEqual(own, t) }) {
			pod.Spec.Tolerations = append(pod.Spec.Tolerations, *t.DeepCopy())
		}
	}
}

// classOf reads a class. The cache may not know one that was just made: then the server does.
func (c *runtimeClass) classOf(ctx context.Context, name string) (*nodev1.RuntimeClass, error) {
	class, err := c.classes.Get(name)
	if apierrors.IsNotFound(err) {
		class, err = c.client.NodeV1().RuntimeClasses().Get(ctx, name, metav1.GetOptions{})
	}
	return class, err
}
