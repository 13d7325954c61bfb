// Decides what each shop needs: a page for every copy that it wants.
//
//	go mod tidy && go run .
//	natsctl run --hook shops.sync --primary shops --secondary pages
//	natsctl put shops corner '{"spec": {"copies": 2, "text": "hi"}}'
package main

import (
	"encoding/json"
	"fmt"
	"log"
	"os"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
)

type request struct {
	Key    string `json:"key"`
	Object struct {
		Spec struct {
			Copies *int   `json:"copies"`
			Text   string `json:"text"`
		} `json:"spec"`
	} `json:"object"`
}

type object struct {
	Spec map[string]any `json:"spec"`
}

type answer struct {
	Children  map[string]map[string]object `json:"children,omitempty"`
	Status    map[string]any               `json:"status,omitempty"`
	Error     string                       `json:"error,omitempty"`
	Permanent bool                         `json:"permanent,omitempty"`
}

func decide(asked request) answer {
	copies, text := 1, asked.Object.Spec.Text
	if asked.Object.Spec.Copies != nil {
		copies = *asked.Object.Spec.Copies
	}
	if text == "" {
		text = "hi"
	}
	if copies > 100 {
		return answer{Error: fmt.Sprintf("%d copies are too many", copies), Permanent: true}
	}
	pages := map[string]object{}
	for n := 0; n < copies; n++ {
		pages[fmt.Sprintf("%s.%d", asked.Key, n)] = object{Spec: map[string]any{"text": strings.ToUpper(text)}}
	}
	return answer{
		Children: map[string]map[string]object{"pages": pages},
		Status:   map[string]any{"ready": true, "pages": copies},
	}
}

func handle(r micro.Request) {
	var asked request
	decision := answer{}
	if err := json.Unmarshal(r.Data(), &asked); err != nil {
		decision.Error = err.Error() // natsctl retries the key
	} else {
		decision = decide(asked)
	}
	if err := r.RespondJSON(decision); err != nil {
		log.Print(err)
	}
}

func main() {
	url := os.Getenv("NATS_URL")
	if url == "" {
		url = nats.DefaultURL
	}
	nc, err := nats.Connect(url)
	if err != nil {
		log.Fatal(err)
	}
	defer nc.Close()
	service, err := micro.AddService(nc, micro.Config{Name: "shops", Version: "1.0.0", QueueGroup: "shops"})
	if err != nil {
		log.Fatal(err)
	}
	if err := service.AddEndpoint("sync", micro.HandlerFunc(handle), micro.WithEndpointSubject("shops.sync")); err != nil {
		log.Fatal(err)
	}
	fmt.Println("deciding about shops")
	select {}
}
