// The servers that a join command names.

package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/controlplane/servers"
)

const (
	// ownVersions is the end of the version of every embedded API server.
	ownVersions = "+hawser"
	// hubLately is how old the latest renewal of a hub's Lease may be. It also allows for clocks
	// that differ a little.
	hubLately = time.Minute
)

// joinServers returns the URLs at which nodes reach the servers: what an embedded API server
// advertises, or the hubs beside another API server. The latter's own URL has no tunnel. It tells
// notes that nodes may not reach hubs so.
func joinServers(ctx context.Context, client kubernetes.Interface, notes io.Writer, fallback string) ([]string, error) {
	version, err := client.Discovery().ServerVersion()
	if err != nil {
		return nil, fmt.Errorf("find out whether the API server is a hawser server: %w", err)
	}
	if strings.HasSuffix(version.GitVersion, ownVersions) {
		return advertised(ctx, client, fallback)
	}
	hubs, err := hubsBeside(ctx, client)
	if err == nil && len(hubs) > 0 {
		_, err = fmt.Fprintf(notes, "the command names the addresses by which hubs reach each other: where nodes reach them otherwise, such as by a load balancer, give --server https://HUB:%d\n", besidePort)
		return hubs, err
	}
	why := "no hub is registered in namespace " + servers.Namespace
	if err != nil {
		why = err.Error()
	}
	return nil, fmt.Errorf("this cluster's API server is not a hawser server, and the hub beside it is not known (%s): give --server https://HUB:%d", why, besidePort)
}

// hubsBeside returns the URLs of the hubs that have renewed their Leases lately, in a stable
// order. If none has, it returns all: this machine's clock may be wrong.
func hubsBeside(ctx context.Context, client kubernetes.Interface) ([]string, error) {
	list, err := client.CoordinationV1().Leases(servers.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list Leases in %s: %w", servers.Namespace, err)
	}
	var live, all []string
	for i := range list.Items {
		l := &list.Items[i]
		address := l.Annotations[servers.Address]
		if !isHostPort(address) {
			continue // not a hub's
		}
		url := "https://" + address
		all = append(all, url)
		if renewed := l.Spec.RenewTime; renewed != nil && time.Since(renewed.Time) < hubLately {
			live = append(live, url)
		}
	}
	if len(live) > 0 {
		all = live
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

// isHostPort reports whether text is an IP address or a DNS name with a port.
func isHostPort(text string) bool {
	host, port, err := net.SplitHostPort(text)
	_, noIP := netip.ParseAddr(host)
	_, noPort := strconv.ParseUint(port, 10, 16)
	return err == nil && noPort == nil && (noIP == nil || auth.CheckNodeName(strings.ToLower(host)) == nil)
}

// advertised returns the URLs that the servers publish for their own service, in a stable
// order. Servers that are there for their own machine only publish none; then it is fallback,
// by which we reach one.
func advertised(ctx context.Context, client kubernetes.Interface, fallback string) ([]string, error) {
	slice, err := client.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).Get(ctx, "kubernetes", metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("find the server's advertised address: %w", err)
	}
	var urls []string
	for _, e := range slice.Endpoints {
		for _, address := range e.Addresses {
			if len(slice.Ports) > 0 && slice.Ports[0].Port != nil {
				urls = append(urls, "https://"+net.JoinHostPort(address, strconv.Itoa(int(*slice.Ports[0].Port))))
			}
		}
	}
	if len(urls) == 0 {
		return []string{fallback}, nil
	}
	slices.Sort(urls)
	return slices.Compact(urls), nil
}
