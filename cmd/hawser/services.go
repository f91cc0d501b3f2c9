// Names of services: what the clients of the front ends may dial in place of an endpoint's
// address.

package main

import (
	"context"
	"net"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes"

	"github.com/hawser-project/hawser/controlplane/apiserver/kubelet"
	"github.com/hawser-project/hawser/tunnel"
)

// maxEndpoints is how many endpoints of a service are dialed for one connection.
const maxEndpoints = 3

// serviceObjects read a service and its slices, of the namespace that ctx has.
type serviceObjects struct {
	service func(ctx context.Context, name string) (*corev1.Service, error)
	slices  func(ctx context.Context, service string) ([]*discoveryv1.EndpointSlice, error)
}

// servicesBeside reads another API server's. It lists, because the roles of a hub that
// listens for services have no other verb.
func servicesBeside(api kubernetes.Interface) *serviceObjects {
	return &serviceObjects{
		service: func(ctx context.Context, name string) (*corev1.Service, error) {
			by := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()}
			all, err := api.CoreV1().Services(request.NamespaceValue(ctx)).List(ctx, by)
			if err != nil {
				return nil, err
			}
			for i := range all.Items {
				if all.Items[i].Name == name {
					return &all.Items[i], nil
				}
			}
			return nil, apierrors.NewNotFound(corev1.Resource("services"), name)
		},
		slices: func(ctx context.Context, service string) ([]*discoveryv1.EndpointSlice, error) {
			by := metav1.ListOptions{LabelSelector: labels.Set{discoveryv1.LabelServiceName: service}.String()}
			all, err := api.DiscoveryV1().EndpointSlices(request.NamespaceValue(ctx)).List(ctx, by)
			if err != nil {
				return nil, err
			}
			out := make([]*discoveryv1.EndpointSlice, len(all.Items))
			for i := range all.Items {
				out[i] = &all.Items[i]
			}
			return out, nil
		},
	}
}

// endpoints are the addresses to dial for the name of a service with a port. named says
// whether addr is one.
func (s *serviceObjects) endpoints(ctx context.Context, addr string) (targets []string, named bool, err error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, false, nil //nolint:nilerr // the hub says what is wrong with it
	}
	name, named := kubelet.ParseServiceName(host)
	number, err := strconv.ParseUint(port, 10, 16)
	if !named || err != nil || number == 0 {
		return nil, false, nil //nolint:nilerr // as above
	}
	ctx = request.WithNamespace(ctx, name.Namespace)
	svc, err := s.service(ctx, name.Name)
	var slices []*discoveryv1.EndpointSlice
	if err == nil {
		slices, err = s.slices(ctx, name.Name)
	}
	unread := err != nil && !apierrors.IsNotFound(err)
	if err == nil {
		targets, err = kubelet.Endpoints(svc, slices, name.Host, uint16(number))
	}
	if err != nil {
		code := tunnel.Unresolved
		if unread {
			code = tunnel.CodeOf(err)
		}
		return nil, true, &tunnel.DialError{Addr: addr, Code: code, Text: err.Error()}
	}
	return targets, true, nil
}

// dial dials addr by by, and the name of a service by its endpoints' addresses: maxEndpoints at
// most, one after the other, until one is reached. Each gets its share of the time that is
// left.
func (s *serviceObjects) dial(ctx context.Context, by dialFunc, network, addr string) (net.Conn, error) {
	targets, named, err := s.endpoints(ctx, addr)
	if err != nil {
		return nil, err
	}
	if !named {
		return by(ctx, network, addr)
	}
	for left := min(maxEndpoints, len(targets)); left > 0; left-- {
		var c net.Conn
		if c, err = dialShare(ctx, left, by, network, targets[left-1]); err == nil {
			return c, nil
		}
		if ctx.Err() != nil {
			break
		}
	}
	return nil, &tunnel.DialError{Addr: addr, Code: tunnel.CodeOf(err), Text: err.Error()}
}

// dialShare dials within the n-th part of the time that ctx has left.
func dialShare(ctx context.Context, n int, by dialFunc, network, addr string) (net.Conn, error) {
	if end, ok := ctx.Deadline(); ok && n > 1 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Until(end)/time.Duration(n))
		defer cancel()
	}
	return by(ctx, network, addr)
}
