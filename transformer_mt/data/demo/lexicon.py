"""The words of the built-in English-German demonstration corpus.

The tables are plain text so that a speaker of both languages can check them at a glance. Each English word has
one German word, which keeps the corpus a function from English to German. Underscores stand for spaces.
"""

from __future__ import annotations

# "english[/plural] German gender German-plural"; gender w is a weak masculine (its plural form is also its oblique
# singular), and "-" for the plural is a mass noun.
NOUN_TABLES = {
    "person": """
        teacher Lehrer m Lehrer; doctor Arzt m Ärzte; student Student w Studenten; woman/women Frau f Frauen;
        nurse Krankenschwester f Krankenschwestern; man/men Mann m Männer; girl Mädchen n Mädchen;
        boy Junge w Jungen; child/children Kind n Kinder; friend Freund m Freunde; colleague Kollege w Kollegen;
        cook Koch m Köche; baker Bäcker m Bäcker; policeman/policemen Polizist w Polizisten; farmer Bauer w Bauern;
        son Sohn m Söhne; lawyer Anwalt m Anwälte; artist Künstler m Künstler;
        writer Schriftsteller m Schriftsteller; singer Sänger m Sänger; actress Schauspielerin f Schauspielerinnen;
        queen Königin f Königinnen; king König m Könige; mother Mutter f Mütter; father Vater m Väter;
        brother Bruder m Brüder; sister Schwester f Schwestern; daughter Tochter f Töchter; aunt Tante f Tanten;
        uncle Onkel m Onkel; grandmother Großmutter f Großmütter; grandfather Großvater m Großväter;
        guest Gast m Gäste; tourist Tourist w Touristen; baby Baby n Babys; gardener Gärtner m Gärtner;
        journalist Journalist w Journalisten; driver Fahrer m Fahrer; professor Professor m Professoren;
        waiter Kellner m Kellner; engineer Ingenieur m Ingenieure; secretary Sekretärin f Sekretärinnen;
        neighbour Nachbar w Nachbarn
    """,
    "animal": """
        dog Hund m Hunde; cat Katze f Katzen; horse Pferd n Pferde; bird Vogel m Vögel; cow Kuh f Kühe;
        pig Schwein n Schweine; mouse/mice Maus f Mäuse; rabbit Kaninchen n Kaninchen; bear Bär w Bären;
        lion Löwe w Löwen; elephant Elefant w Elefanten; monkey Affe w Affen; duck Ente f Enten;
        goat Ziege f Ziegen; fox Fuchs m Füchse; donkey Esel m Esel
    """,
    "food": """
        apple Apfel m Äpfel; egg Ei n Eier; cake Kuchen m Kuchen; banana Banane f Bananen; pear Birne f Birnen;
        tomato/tomatoes Tomate f Tomaten; potato/potatoes Kartoffel f Kartoffeln; soup Suppe f Suppen;
        carrot Karotte f Karotten; pizza Pizza f Pizzen; sausage Wurst f Würste; roll Brötchen n Brötchen;
        pancake Pfannkuchen m Pfannkuchen; strawberry Erdbeere f Erdbeeren; salad Salat m Salate; nut Nuss f Nüsse;
        biscuit Keks m Kekse; bread Brot n -; cheese Käse m -; butter Butter f -; rice Reis m -; meat Fleisch n -;
        chocolate Schokolade f -; honey Honig m -; ham Schinken m -; jam Marmelade f -; fruit Obst n -
    """,
    "drink": """
        coffee Kaffee m -; tea Tee m -; milk Milch f -; water Wasser n -; juice Saft m -; wine Wein m -;
        beer Bier n -; lemonade Limonade f -; cocoa Kakao m -
    """,
    "text": """
        book Buch n Bücher; letter Brief m Briefe; newspaper Zeitung f Zeitungen; novel Roman m Romane;
        magazine Zeitschrift f Zeitschriften; poem Gedicht n Gedichte; report Bericht m Berichte;
        message Nachricht f Nachrichten; postcard Postkarte f Postkarten; article Artikel m Artikel
    """,
    "tale": "story Geschichte f Geschichten; fairy_tale Märchen n Märchen; joke Witz m Witze",
    "clothes": """
        coat Mantel m Mäntel; shirt Hemd n Hemden; shoe Schuh m Schuhe; hat Hut m Hüte; dress Kleid n Kleider;
        jacket Jacke f Jacken; skirt Rock m Röcke; sock Socke f Socken; glove Handschuh m Handschuhe;
        boot Stiefel m Stiefel; jumper Pullover m Pullover; blouse Bluse f Blusen; cap Mütze f Mützen
    """,
    "thing": """
        ball Ball m Bälle; key Schlüssel m Schlüssel; bag Tasche f Taschen; guitar Gitarre f Gitarren;
        umbrella Regenschirm m Regenschirme; knife/knives Messer n Messer; cup Tasse f Tassen;
        plate Teller m Teller; bottle Flasche f Flaschen; camera Kamera f Kameras; ring Ring m Ringe;
        flower Blume f Blumen; glass Glas n Gläser; basket Korb m Körbe; pencil Bleistift m Bleistifte;
        ticket Fahrkarte f Fahrkarten; gift Geschenk n Geschenke; spoon Löffel m Löffel; fork Gabel f Gabeln;
        doll Puppe f Puppen; picture Bild n Bilder
    """,
    "device": """
        lamp Lampe f Lampen; computer Computer m Computer; radio Radio n Radios; television Fernseher m Fernseher;
        heater Heizung f Heizungen
    """,
    "furniture": """
        table Tisch m Tische; chair Stuhl m Stühle; bed Bett n Betten; sofa Sofa n Sofas;
        shelf/shelves Regal n Regale; bench Bank f Bänke; desk Schreibtisch m Schreibtische;
        carpet Teppich m Teppiche; armchair Sessel m Sessel
    """,
    "vehicle": """
        car Auto n Autos; bicycle Fahrrad n Fahrräder; motorcycle Motorrad n Motorräder; bus Bus m Busse;
        lorry Lastwagen m Lastwagen; boat Boot n Boote; ship Schiff n Schiffe
    """,
    "opening": "door Tür f Türen; window Fenster n Fenster; suitcase Koffer m Koffer; box Kiste f Kisten",
    "room": """
        kitchen Küche f Küchen; cellar Keller m Keller; bedroom Schlafzimmer n Schlafzimmer;
        bathroom Badezimmer n Badezimmer; office Büro n Büros; classroom Klassenzimmer n Klassenzimmer
    """,
    "home": """
        house Haus n Häuser; city Stadt f Städte; village Dorf n Dörfer; hotel Hotel n Hotels;
        castle Schloss n Schlösser; flat Wohnung f Wohnungen
    """,
    "venue": """
        park Park m Parks; garden Garten m Gärten; cinema Kino n Kinos; theatre Theater n Theater;
        museum Museum n Museen; restaurant Restaurant n Restaurants; forest Wald m Wälder; school Schule f Schulen;
        church Kirche f Kirchen; library Bibliothek f Bibliotheken; supermarket Supermarkt m Supermärkte;
        hospital Krankenhaus n Krankenhäuser; factory Fabrik f Fabriken; bakery Bäckerei f Bäckereien;
        café Café n Cafés; zoo Zoo m Zoos
    """,
    "spot": """
        station Bahnhof m Bahnhöfe; airport Flughafen m Flughäfen; beach Strand m Strände; river Fluss m Flüsse;
        lake See m Seen; bus_stop Bushaltestelle f Bushaltestellen; harbour Hafen m Häfen;
        university Universität f Universitäten
    """,
    "ground": """
        bridge Brücke f Brücken; farm Bauernhof m Bauernhöfe; street Straße f Straßen; meadow Wiese f Wiesen
    """,
    "task": """
        question Frage f Fragen; problem Problem n Probleme; exercise Übung f Übungen; sentence Satz m Sätze;
        word Wort n Wörter; rule Regel f Regeln; mistake Fehler m Fehler; plan Plan m Pläne
    """,
    "event": """
        film Film m Filme; song Lied n Lieder; journey Reise f Reisen; party Feier f Feiern; dream Traum m Träume;
        concert Konzert n Konzerte; exam Prüfung f Prüfungen; game Spiel n Spiele
    """,
}
# Where something is: the English and the German preposition (German with the dative).
PLACE_PREPOSITIONS = {
    "room": ("in", "in"), "home": ("in", "in"), "venue": ("in", "in"),
    "spot": ("at", "an"), "ground": ("on", "auf"), "furniture": ("on", "auf"),
}  # fmt: skip

# Whose mother, and whose friend, but which king: kin has an owner, an acquaintance may have one, and those that belong
# to nobody in particular do without.
KIN = {"mother", "father", "brother", "sister", "son", "daughter", "aunt", "uncle", "grandmother", "grandfather"}
ACQUAINTANCES = {"friend", "colleague", "neighbour", "guest", "teacher", "doctor", "lawyer", "secretary", "gardener"}
PETS_AND_FARM_ANIMALS = {"dog", "cat", "horse", "cow", "pig", "rabbit", "duck", "goat", "donkey"}
UNOWNED_KINDS = {"venue", "spot", "ground"}

# "kinds of noun: english german [inflected stem]; ..."
ADJECTIVES = """
person animal: young jung; hungry hungrig; tired müde; lazy faul; dangerous gefährlich; clever klug; strong stark;
    thirsty durstig
person: friendly freundlich; happy glücklich; sad traurig; rich reich; poor arm; famous berühmt; polite höflich;
    hard-working fleißig; honest ehrlich; nice nett; shy schüchtern; brave mutig; angry wütend; nervous nervös;
    ill krank; healthy gesund; patient geduldig; curious neugierig; serious ernst; proud stolz; lonely einsam
animal: wild wild; fast schnell; white weiß; black schwarz; brown braun; fat fett
person animal text tale clothes thing device furniture vehicle opening room home venue spot ground event: old alt
animal clothes thing device furniture vehicle opening room home venue spot ground: big groß; small klein; ugly hässlich
food: fresh frisch; sweet süß; delicious lecker; cheap billig; soft weich; frozen gefroren
drink: cold kalt; hot heiß; cheap billig; delicious lecker; expensive teuer teur; sweet süß
text tale event: interesting interessant; boring langweilig; long lang; funny lustig; short kurz; exciting spannend;
    sad traurig; important wichtig; strange seltsam
text clothes thing device furniture vehicle: new neu; cheap billig; expensive teuer teur
clothes furniture vehicle thing: beautiful schön; red rot; blue blau; green grün; yellow gelb; white weiß;
    black schwarz; grey grau; brown braun
clothes: warm warm; dirty schmutzig; clean sauber; elegant elegant; colourful bunt; wet nass; dry trocken
thing: heavy schwer; light leicht; broken kaputt; valuable wertvoll; lost verloren; dirty schmutzig; clean sauber
device: broken kaputt; modern modern; loud laut
furniture: comfortable bequem; heavy schwer; wooden hölzern
vehicle: fast schnell; slow langsam; modern modern; broken kaputt
opening: closed geschlossen; open offen; heavy schwer; wide breit
room home venue: dark dunkel dunkl; modern modern; quiet ruhig; clean sauber; beautiful schön; dirty schmutzig;
    bright hell; cold kalt
spot ground: quiet ruhig; beautiful schön; famous berühmt; dangerous gefährlich; narrow schmal; new neu
task: difficult schwierig; easy einfach; important wichtig; new neu; simple schlicht; unusual ungewöhnlich;
    complicated kompliziert; short kurz; long lang
event: wonderful wunderbar; unforgettable unvergesslich
"""
COMPARISONS = """
        old older oldest älter ältest; young younger youngest jünger jüngst; big bigger biggest größer größt;
        small smaller smallest kleiner kleinst; rich richer richest reicher reichst;
        poor poorer poorest ärmer ärmst; strong stronger strongest stärker stärkst;
        clever cleverer cleverest klüger klügst; fast faster fastest schneller schnellst;
        slow slower slowest langsamer langsamst; cheap cheaper cheapest billiger billigst;
        heavy heavier heaviest schwerer schwerst; expensive more_expensive most_expensive teurer teuerst;
        long longer longest länger längst;
        interesting more_interesting most_interesting interessanter interessantest;
        funny funnier funniest lustiger lustigst; beautiful more_beautiful most_beautiful schöner schönst;
        friendly friendlier friendliest freundlicher freundlichst;
        famous more_famous most_famous berühmter berühmtest; lazy lazier laziest fauler faulst;
        dangerous more_dangerous most_dangerous gefährlicher gefährlichst;
        important more_important most_important wichtiger wichtigst;
        difficult more_difficult most_difficult schwieriger schwierigst; sweet sweeter sweetest süßer süßest;
        fresh fresher freshest frischer frischest; quiet quieter quietest ruhiger ruhigst;
        modern more_modern most_modern moderner modernst
    """

# "english past = [sich] [prefix.]infinitive third-person [ist] participle : details"; the details are the kinds of
# the object, after a German preposition with its case in the table of prepositional verbs. "*" bars modal verbs.
VERB_TABLES = {
    "activity": """
        work worked = arbeiten arbeitet gearbeitet; laugh laughed = lachen lacht gelacht;
        cry cried = weinen weint geweint; dance danced = tanzen tanzt getanzt; sing sang = singen singt gesungen;
        cook cooked = kochen kocht gekocht; smoke smoked = rauchen raucht geraucht;
        go_shopping went = ein.kaufen kauft eingekauft; play played = spielen spielt gespielt;
        sleep slept = schlafen schläft geschlafen; smile smiled = lächeln lächelt gelächelt;
        rest rested = sich aus.ruhen ruht ausgeruht; fall_asleep fell = ein.schlafen schläft ist eingeschlafen;
        have_breakfast had = frühstücken frühstückt gefrühstückt; wake_up woke = auf.wachen wacht ist aufgewacht;
        pray prayed = beten betet gebetet
    """,
    "happening": """
        swim swam = schwimmen schwimmt ist geschwommen; get_up got = auf.stehen steht ist aufgestanden;
        hurry hurried = sich beeilen beeilt beeilt; get_dressed got = sich an.ziehen zieht angezogen;
        sit_down sat = sich hin.setzen setzt hingesetzt; come_back came = zurück.kommen kommt ist zurückgekommen;
        drive_away drove = weg.fahren fährt ist weggefahren; run_away ran = weg.laufen läuft ist weggelaufen;
        arrive arrived = an.kommen kommt ist angekommen
    """,
    "transitive": """
        buy bought = kaufen kauft gekauft : food text clothes thing device furniture vehicle;
        sell sold = verkaufen verkauft verkauft : food clothes thing device furniture vehicle;
        see saw = sehen sieht gesehen : person animal vehicle venue *;
        find found = finden findet gefunden : thing text clothes animal;
        look_for looked = suchen sucht gesucht : person animal thing spot;
        read read = lesen liest gelesen : text tale; write wrote = schreiben schreibt geschrieben : text tale;
        eat ate = essen isst gegessen : food; drink drank = trinken trinkt getrunken : drink;
        bring brought = bringen bringt gebracht : drink food thing;
        bake baked = backen backt gebacken : +cake +bread +pizza +roll +pancake +biscuit;
        wear wore = tragen trägt getragen : clothes; carry carried = tragen trägt getragen : thing furniture;
        love loved = lieben liebt geliebt : person animal tale *;
        visit visited = besuchen besucht besucht : person venue home; meet met = treffen trifft getroffen : person;
        photograph photographed = fotografieren fotografiert fotografiert : person animal home spot;
        draw drew = zeichnen zeichnet gezeichnet : animal person vehicle;
        paint painted = malen malt gemalt : home animal thing;
        repair repaired = reparieren repariert repariert : vehicle device;
        wash washed = waschen wäscht gewaschen : clothes vehicle;
        clean cleaned = putzen putzt geputzt : room opening;
        need needed = brauchen braucht gebraucht : thing device clothes *;
        have had = haben hat gehabt : animal thing device vehicle *;
        lose lost = verlieren verliert verloren : thing clothes;
        forget forgot = vergessen vergisst vergessen : thing text task *;
        like liked = mögen mag gemocht : person animal food event *;
        hear heard = hören hört gehört : animal person event *;
        understand understood = verstehen versteht verstanden : task text;
        describe described = beschreiben beschreibt beschrieben : person task event home;
        steal stole = stehlen stiehlt gestohlen : thing vehicle;
        hide hid = verstecken versteckt versteckt : thing text animal;
        learn learned = lernen lernt gelernt : +poem +song +rule +word;
        praise praised = loben lobt gelobt : person food; greet greeted = grüßen grüßt gegrüßt : person;
        examine examined = untersuchen untersucht untersucht : person animal vehicle;
        build built = bauen baut gebaut : home ground venue; open opened = auf.machen macht aufgemacht : opening;
        close closed = zu.machen macht zugemacht : opening; call called = an.rufen ruft angerufen : person;
        invite invited = ein.laden lädt eingeladen : person; pick_up picked = ab.holen holt abgeholt : person;
        bring_along brought = mit.bringen bringt mitgebracht : food drink animal;
        put_on put = an.ziehen zieht angezogen : clothes; take_off took = aus.ziehen zieht ausgezogen : clothes;
        pack packed = ein.packen packt eingepackt : thing clothes text;
        throw_away threw = weg.werfen wirft weggeworfen : text clothes food;
        take_along took = mit.nehmen nimmt mitgenommen : person thing animal;
        tidy_up tidied = auf.räumen räumt aufgeräumt : room;
        prepare prepared = vor.bereiten bereitet vorbereitet : event;
        try_on tried = an.probieren probiert anprobiert : clothes;
        turn_on turned = an.machen macht angemacht : device; turn_off turned = aus.machen macht ausgemacht : device;
        give_back gave = zurück.geben gibt zurückgegeben : thing text;
        choose chose = aus.wählen wählt ausgewählt : clothes text thing;
        feed fed = füttern füttert gefüttert : animal; solve solved = lösen löst gelöst : task;
        order ordered = bestellen bestellt bestellt : food drink;
        explain explained = erklären erklärt erklärt : task;
        correct corrected = korrigieren korrigiert korrigiert : text task;
        translate translated = übersetzen übersetzt übersetzt : text tale
    """,
    "dative": """
        help helped = helfen hilft geholfen : person animal; thank thanked = danken dankt gedankt : person;
        follow followed = folgen folgt ist gefolgt : person animal vehicle;
        trust trusted = vertrauen vertraut vertraut : person;
        congratulate congratulated = gratulieren gratuliert gratuliert : person;
        listen_to listened = zu.hören hört zugehört : person;
        watch watched = zu.schauen schaut zugeschaut : person animal;
        forgive forgave = verzeihen verzeiht verziehen : person;
        contradict contradicted = widersprechen widerspricht widersprochen : person
    """,
    "prepositional": """
        wait_for waited = warten wartet gewartet : auf acc person vehicle;
        think_of thought = denken denkt gedacht : an acc person event;
        talk_about talked = sprechen spricht gesprochen : über acc person animal text task event;
        ask_for asked = bitten bittet gebeten : um acc drink food;
        dream_of dreamed = träumen träumt geträumt : von dat person animal home event;
        laugh_at laughed = lachen lacht gelacht : über acc person tale;
        look_after looked = auf.passen passt aufgepasst : auf acc person animal;
        remember remembered = sich erinnern erinnert erinnert : an acc person event text;
        look_forward_to looked = sich freuen freut gefreut : auf acc event;
        take_care_of took = sich kümmern kümmert gekümmert : um acc person animal;
        complain_about complained = sich beschweren beschwert beschwert : über acc person food task venue;
        fall_in_love_with fell = sich verlieben verliebt verliebt : in acc person;
        say_goodbye_to said = sich verabschieden verabschiedet verabschiedet : von dat person
    """,
    "giving": """
        give gave = geben gibt gegeben : thing text food drink;
        show showed = zeigen zeigt gezeigt : text thing clothes room;
        send sent = schicken schickt geschickt : text thing; lend lent = leihen leiht geliehen : thing text vehicle;
        tell told = erzählen erzählt erzählt : tale; offer offered = an.bieten bietet angeboten : food drink
    """,
    "motion": """
        go went = gehen geht ist gegangen : venue room spot;
        walk walked = laufen läuft ist gelaufen : venue spot ground;
        drive drove = fahren fährt ist gefahren : spot city; travel travelled = reisen reist ist gereist : city;
        fly flew = fliegen fliegt ist geflogen : city; move moved = um.ziehen zieht ist umgezogen : city;
        come came = kommen kommt ist gekommen : venue spot room;
        return returned = zurück.kehren kehrt ist zurückgekehrt : city room
    """,
    "location": """
        live lived = wohnen wohnt gewohnt : home city;
        stay stayed = bleiben bleibt ist geblieben : home venue room city;
        sit sat = sitzen sitzt gesessen : venue room furniture;
        stand stood = stehen steht gestanden : room spot ground
    """,
    "laying": "lay laid = legen legt gelegt : text thing clothes",
    "saying": """
        know knew = wissen weiß gewusst; think thought = denken denkt gedacht; say said = sagen sagt gesagt;
        believe believed = glauben glaubt geglaubt; hope hoped = hoffen hofft gehofft;
        hear heard = hören hört gehört; write wrote = schreiben schreibt geschrieben;
        notice noticed = merken merkt gemerkt
    """,
    "asking": """
        ask asked = fragen fragt gefragt; know knew = wissen weiß gewusst;
        wonder wondered = sich fragen fragt gefragt; find_out found = heraus.finden findet herausgefunden
    """,
    "intending": """
        try tried = versuchen versucht versucht; decide decided = beschließen beschließt beschlossen;
        begin began = beginnen beginnt begonnen; promise promised = versprechen verspricht versprochen;
        plan planned = planen plant geplant; forget forgot = vergessen vergisst vergessen
    """,
    "weather": "rain rained = regnen regnet geregnet; snow snowed = schneien schneit geschneit",
    "copula": "be was = sein ist ist gewesen",
}

# "english german; ..." by the time of the clause; the adverbials of "any" suit all of them.
TIMES = {
    "present": """
        today heute; now jetzt; every_day jeden_Tag; every_morning jeden_Morgen; every_evening jeden_Abend;
        on_Mondays montags; on_Sundays sonntags; at_the_moment im_Moment; at_night nachts; every_week jede_Woche
    """,
    "past": """
        yesterday gestern; last_week letzte_Woche; last_year letztes_Jahr; this_morning heute_Morgen;
        last_month letzten_Monat; yesterday_evening gestern_Abend; the_day_before_yesterday vorgestern;
        last_summer letzten_Sommer
    """,
    "future": """
        tomorrow morgen; next_week nächste_Woche; next_year nächstes_Jahr; soon bald; next_month nächsten_Monat;
        tomorrow_evening morgen_Abend; the_day_after_tomorrow übermorgen; tonight heute_Abend;
        next_summer nächsten_Sommer
    """,
    "any": """
        on_Monday am_Montag; on_Tuesday am_Dienstag; on_Wednesday am_Mittwoch; on_Thursday am_Donnerstag;
        on_Friday am_Freitag; on_Saturday am_Samstag; on_Sunday am_Sonntag; in_the_evening am_Abend;
        in_summer im_Sommer; in_winter im_Winter; in_spring im_Frühling; in_the_afternoon am_Nachmittag
    """,
}
FREQUENCIES = "always immer; often oft; never nie; rarely selten; sometimes manchmal; usually normalerweise"
MANNERS = """
        slowly langsam; quickly schnell; carefully vorsichtig; happily fröhlich; quietly leise; secretly heimlich;
        patiently geduldig
    """
VEHICLES = "by_bus mit_dem_Bus; by_train mit_dem_Zug; by_car mit_dem_Auto; by_taxi mit_dem_Taxi"
COMMENTS = """
        perhaps vielleicht; unfortunately, leider; fortunately, zum_Glück; of_course, natürlich; suddenly plötzlich;
        finally endlich; therefore deshalb
    """
SUBORDINATORS = "because weil; although obwohl; while während; before bevor; as_soon_as sobald; until bis"
PEOPLE = "Anna Peter Maria Paul Julia Martin Laura Daniel Sophie Michael Clara David Eva Simon Nina Robert Helen Oliver"
CITIES = """
        Berlin Berlin; Munich München; Vienna Wien; Hamburg Hamburg; Cologne Köln; Paris Paris; London London;
        Rome Rom; Italy Italien; France Frankreich; Spain Spanien; Germany Deutschland; Austria Österreich
    """
ONES = """one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
    eighteen nineteen""", """ein zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn
    sechzehn siebzehn achtzehn neunzehn"""  # fmt: skip
TENS = (
    "twenty thirty forty fifty sixty seventy eighty ninety",
    "zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig",
)
